/* Writes a pattern over a disk, eight writes in flight, makes it durable and reads its end: ./pattern SPEC */
#include <errno.h>
#include <headworks.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH = 8, BYTES = 64 << 10 };

static int fail(const char *what, long code)
{
    fprintf(stderr, "%s: %s: %s\n", what, strerror((int)-code), hw_error());
    return 1;
}

/* Writes the disk part by part; completions come in any order. */
static int fill(struct hw_queue *queue, int64_t capacity)
{
    for (int64_t at = 0, in_flight = 0; at < capacity || in_flight > 0;) {
        int slot = at < capacity ? hw_slot(queue) : -EAGAIN;
        if (slot >= 0) {
            uint32_t len = capacity - at < BYTES ? (uint32_t)(capacity - at) : BYTES;
            memset(hw_buffer(queue, (uint32_t)slot), (int)(at / BYTES) & 0xff, len);
            int code = hw_put(queue, (uint32_t)slot, HW_WRITE, (uint64_t)at, len, 0, (uint64_t)at);
            if (code < 0) return fail("hw_put", code);
            at += len, in_flight++;
            continue;
        }
        struct hw_completion done[DEPTH];
        int count = hw_wait(queue, -1); /* starts what was put */
        if (count > 0) count = hw_reap(queue, done, DEPTH);
        if (count < 0) return fail("hw_wait", count);
        for (int i = 0; i < count; i++, in_flight--) {
            if (done[i].result < 0) return fail("a write", done[i].result);
            hw_release(queue, done[i].slot);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct hw_options options = {.size = sizeof options, .depth = DEPTH, .slot_bytes = BYTES};
    struct hw_disk *disk;
    unsigned char last[512];
    if (argc != 2) return fprintf(stderr, "usage: pattern SPEC\n"), 2;
    int code = hw_open(argv[1], &options, &disk);
    if (code < 0) return fail("hw_open", code);
    struct hw_queue *queue = hw_queue_at(disk, 0);
    int64_t capacity = hw_capacity(disk);
    if (fill(queue, capacity) != 0) return 1;
    if ((code = hw_fsync(queue)) < 0) return fail("hw_fsync", code);
    code = hw_pread(queue, last, sizeof last, (uint64_t)capacity - sizeof last);
    if (code < 0) return fail("hw_pread", code);
    if ((code = hw_close(disk)) < 0) return fail("hw_close", code);
    printf("%lld bytes written; the last one is %u; version %s\n", (long long)capacity, last[511], hw_version());
    return last[511] != ((capacity - 1) / BYTES & 0xff);
}
