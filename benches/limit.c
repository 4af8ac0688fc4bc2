/* The least that a server of NBD can do for a read: memory to the socket by one call, a thread for each connection, no path, no cache.
 *
 *   limit SOCKET BYTES [sendfile]
 *
 * Serves BYTES of shared memory in pages of 4 KiB on a unix socket, read-only, until it is killed. A read is one sendmsg, or with `sendfile` the
 * header and a splice of the pages without a copy, which is correct only while nothing changes them. What a server reaches of this is
 * the honest figure of a bench: the rest is the kernel's copy, and the client. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* Numbers of the protocol (NetworkBlockDevice/nbd, doc/proto.md). */
enum { OPT_GO = 7, REP_ACK = 1, REP_INFO = 3, HAS_FLAGS = 1, READ_ONLY = 2, MULTI_CONN = 256, CMD_READ = 0 };
#define REP_UNSUPPORTED 0x80000001u

static char *memory;
static int file;
static uint64_t bytes;
static int splices;

static int get(int s, void *to, size_t len) { return recv(s, to, len, MSG_WAITALL) == (ssize_t)len ? 0 : -1; }
static int put(int s, const void *from, size_t len) { return send(s, from, len, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1; }

static int answer(int s, uint32_t option, uint32_t kind, const void *data, uint32_t len) {
    struct {
        uint64_t magic;
        uint32_t option, kind, len;
    } __attribute__((packed)) head = {htobe64(0x3e889045565a9ULL), htonl(option), htonl(kind), htonl(len)};
    return put(s, &head, sizeof head) || (len && put(s, data, len)) ? -1 : 0;
}

/* Answers options until the client goes to the export. */
static int handshake(int s) {
    struct {
        uint64_t magic, option_magic;
        uint16_t flags;
    } __attribute__((packed)) hello = {htobe64(0x4e42444d41474943ULL), htobe64(0x49484156454f5054ULL), htons(3)};
    uint32_t flags;
    if (put(s, &hello, sizeof hello) || get(s, &flags, sizeof flags)) return -1;
    for (;;) {
        struct {
            uint64_t magic;
            uint32_t option, len;
        } __attribute__((packed)) asked;
        char data[4096];
        if (get(s, &asked, sizeof asked)) return -1;
        uint32_t option = ntohl(asked.option), len = ntohl(asked.len);
        if (len > sizeof data || (len && get(s, data, len))) return -1;
        if (option != OPT_GO) {
            if (answer(s, option, REP_UNSUPPORTED, NULL, 0)) return -1;
            continue;
        }
        struct {
            uint16_t kind;
            uint64_t size;
            uint16_t flags;
        } __attribute__((packed)) info = {0, htobe64(bytes), htons(HAS_FLAGS | READ_ONLY | MULTI_CONN)};
        return answer(s, option, REP_INFO, &info, sizeof info) || answer(s, option, REP_ACK, NULL, 0) ? -1 : 0;
    }
}

static int spliced(int s, const void *head, size_t head_len, uint64_t at, size_t len) {
    if (put(s, head, head_len)) return -1;
    off_t from = (off_t)at;
    while (from < (off_t)(at + len))
        if (sendfile(s, file, &from, at + len - (size_t)from) <= 0) return -1;
    return 0;
}

static int copied(int s, void *head, size_t head_len, uint64_t at, size_t len) {
    struct iovec parts[2] = {{head, head_len}, {memory + at, len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(s, &message, MSG_NOSIGNAL) == (ssize_t)(head_len + len) ? 0 : -1;
}

static void *serve(void *arg) {
    int s = (int)(intptr_t)arg;
    int open = !handshake(s);
    while (open) {
        struct {
            uint32_t magic;
            uint16_t flags, kind;
            uint64_t cookie, at;
            uint32_t len;
        } __attribute__((packed)) asked;
        if (get(s, &asked, sizeof asked) || ntohs(asked.kind) != CMD_READ) break;
        struct {
            uint32_t magic, error;
            uint64_t cookie;
        } __attribute__((packed)) head = {htonl(0x67446698), 0, asked.cookie};
        uint64_t at = be64toh(asked.at);
        size_t len = ntohl(asked.len);
        if (at > bytes || len > bytes - at) break;
        open = !(splices ? spliced(s, &head, sizeof head, at, len) : copied(s, &head, sizeof head, at, len));
    }
    close(s);
    return NULL;
}

int main(int count, char **args) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (count < 3 || strlen(args[1]) >= sizeof name.sun_path) {
        fputs("usage: limit SOCKET BYTES [sendfile]\n", stderr);
        return 2;
    }
    strcpy(name.sun_path, args[1]);
    bytes = strtoull(args[2], NULL, 0);
    splices = count > 3 && !strcmp(args[3], "sendfile");
    file = memfd_create("limit", 0);
    if (file < 0 || ftruncate(file, (off_t)bytes)) return perror("memory"), 1;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) return perror("memory"), 1;
    memset(memory, 7, bytes);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (void *)&name, sizeof name) || listen(listener, 64)) return perror(args[1]), 1;
    for (;;) {
        pthread_t thread;
        int s = accept(listener, NULL, NULL);
        if (s < 0 || pthread_create(&thread, NULL, serve, (void *)(intptr_t)s)) return perror("accept"), 1;
        pthread_detach(thread);
    }
}
