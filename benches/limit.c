/* The least that a server of NBD can do for a read or a write: memory to the socket and back, a thread for each connection, no path, no cache.
 *
 *   limit SOCKET|PORT BYTES [batch|sendfile] [null]
 *
 * Serves BYTES of shared memory in pages of 4 KiB on a unix socket, or on a port of 127.0.0.1, until it is killed. A read is one sendmsg; with
 * `batch` one sendmsg answers all requests that one receive has brought; with `sendfile` it is the header and a splice of the pages without a copy,
 * which is correct only while nothing changes them. With `null` every request has the same bytes, which stay in the processor's caches. What
 * a server reaches of this is the honest figure of a bench: the rest is the kernel's copy, and the client. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
enum { OPT_GO = 7, REP_ACK = 1, REP_INFO = 3, HAS_FLAGS = 1, MULTI_CONN = 256, CMD_READ = 0, CMD_WRITE = 1 };
#define REP_UNSUPPORTED 0x80000001u

/* The longest request with `null`, and what a receive takes at most with `batch`. */
enum { LONGEST = 32 << 20, RECEIVED = 256 << 10, TOGETHER = 64 };

static char *memory;
static int file;
static uint64_t bytes;
static int splices, batches, null;

struct asked {
    uint32_t magic;
    uint16_t flags, kind;
    uint64_t cookie, at;
    uint32_t len;
} __attribute__((packed));
struct reply {
    uint32_t magic, error;
    uint64_t cookie;
} __attribute__((packed));

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
        } __attribute__((packed)) info = {0, htobe64(bytes), htons(HAS_FLAGS | MULTI_CONN)};
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

static int copied(int s, void *head, size_t head_len, char *at, size_t len) {
    struct iovec parts[2] = {{head, head_len}, {at, len}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return sendmsg(s, &message, MSG_NOSIGNAL) == (ssize_t)(head_len + len) ? 0 : -1;
}

/* The request's place in memory; NULL if it is none that is served. */
static char *place(const struct asked *asked) {
    uint64_t at = be64toh(asked->at);
    size_t len = ntohl(asked->len);
    if (ntohs(asked->kind) > CMD_WRITE || at > bytes || len > bytes - at || (null && len > LONGEST)) return NULL;
    return memory + (null ? 0 : at);
}

/* Requests one at a time: a receive, one more for what is written, a send. */
static void one_by_one(int s) {
    struct asked asked;
    while (!get(s, &asked, sizeof asked)) {
        struct reply head = {htonl(0x67446698), 0, asked.cookie};
        size_t len = ntohl(asked.len);
        char *at = place(&asked);
        if (!at) return;
        int failed;
        if (ntohs(asked.kind) == CMD_WRITE)
            failed = get(s, at, len) || put(s, &head, sizeof head);
        else if (splices)
            failed = spliced(s, &head, sizeof head, (uint64_t)(at - memory), len);
        else
            failed = copied(s, &head, sizeof head, at, len);
        if (failed) return;
    }
}

/* Requests as a receive brings them: one send for all replies. */
static void together(int s) {
    char *buffer = malloc(RECEIVED);
    struct reply heads[TOGETHER];
    struct iovec parts[2 * TOGETHER];
    size_t have = 0;
    for (;;) {
        ssize_t got = recv(s, buffer + have, RECEIVED - have, 0);
        if (got <= 0) break;
        have += (size_t)got;
        char *next = buffer, *end = buffer + have;
        while (end - next >= (ssize_t)sizeof(struct asked)) {
            struct msghdr message = {.msg_iov = parts};
            size_t replies = 0, total = 0;
            while (end - next >= (ssize_t)sizeof(struct asked) && replies < TOGETHER) {
                struct asked asked;
                memcpy(&asked, next, sizeof asked);
                next += sizeof asked;
                size_t len = ntohl(asked.len);
                char *at = place(&asked);
                if (!at) goto out;
                heads[replies] = (struct reply){htonl(0x67446698), 0, asked.cookie};
                parts[message.msg_iovlen++] = (struct iovec){&heads[replies++], sizeof(struct reply)};
                total += sizeof(struct reply);
                if (ntohs(asked.kind) == CMD_READ) {
                    parts[message.msg_iovlen++] = (struct iovec){at, len};
                    total += len;
                    continue;
                }
                size_t here = (size_t)(end - next) < len ? (size_t)(end - next) : len;
                memcpy(at, next, here);
                next += here;
                if (here < len && get(s, at + here, len - here)) goto out;
            }
            if (sendmsg(s, &message, MSG_NOSIGNAL) != (ssize_t)total) goto out;
        }
        have = (size_t)(end - next);
        memmove(buffer, next, have);
    }
out:
    free(buffer);
}

static void *serve(void *arg) {
    int s = (int)(intptr_t)arg, on = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* refused by a unix socket */
    if (!handshake(s)) (batches ? together : one_by_one)(s);
    close(s);
    return NULL;
}

/* Listens on a path, or on a port of 127.0.0.1. */
static int listening(const char *name) {
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)atoi(name))};
    int is_path = strchr(name, '/') != NULL, on = 1, s = socket(is_path ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
    if (is_path && strlen(name) >= sizeof path.sun_path) return -1;
    strncpy(path.sun_path, name, sizeof path.sun_path - 1);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (is_path ? bind(s, (void *)&path, sizeof path) : bind(s, (void *)&port, sizeof port)) return -1;
    return listen(s, 64) ? -1 : s;
}

int main(int count, char **args) {
    if (count < 3) {
        fputs("usage: limit SOCKET|PORT BYTES [batch|sendfile] [null]\n", stderr);
        return 2;
    }
    bytes = strtoull(args[2], NULL, 0);
    for (int at = 3; at < count; at++) {
        batches |= !strcmp(args[at], "batch");
        splices |= !strcmp(args[at], "sendfile");
        null |= !strcmp(args[at], "null");
    }
    size_t mapped = null ? LONGEST : bytes;
    file = memfd_create("limit", 0);
    if (file < 0 || ftruncate(file, (off_t)mapped)) return perror("memory"), 1;
    memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (memory == MAP_FAILED) return perror("memory"), 1;
    memset(memory, 7, mapped);
    int listener = listening(args[1]);
    if (listener < 0) return perror(args[1]), 1;
    for (;;) {
        pthread_t thread;
        int s = accept(listener, NULL, NULL);
        if (s < 0 || pthread_create(&thread, NULL, serve, (void *)(intptr_t)s)) return perror("accept"), 1;
        pthread_detach(thread);
    }
}
