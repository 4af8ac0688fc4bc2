/* Every call of the C API once a round, each round on a disk of its own: ./c_api SPEC ROUNDS ENGINE. A check that fails ends it with its line. */
#include <errno.h>
#include <headworks.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s is false; %s\n", __LINE__, #what, hw_error()); \
            exit(1); \
        } \
    } while (0)

enum { BYTES = 4096 };

/* Waits for one completion. */
static struct hw_completion reap(struct hw_queue *queue)
{
    struct hw_completion done;
    int count;
    while ((count = hw_reap(queue, &done, 1)) == 0) CHECK(hw_wait(queue, 60000) == 1);
    CHECK(count == 1);
    return done;
}

static void io(struct hw_queue *queue)
{
    char out[2][BYTES], in[2 * BYTES];
    struct iovec pieces[2] = {{out[1], BYTES}, {out[0], BYTES}};
    memset(out[0], 'a', BYTES);
    memset(out[1], 'b', BYTES);
    CHECK(hw_writev(queue, 0, pieces, 2, HW_FUA, 1) == 0);
    CHECK(reap(queue).user_data == 1);
    CHECK(hw_read(queue, 0, in, sizeof in, 0, 2) == 0);
    CHECK(reap(queue).result == 0 && in[0] == 'b' && in[2 * BYTES - 1] == 'a');
    CHECK(hw_readv(queue, BYTES, pieces, 1, HW_BACKGROUND, 3) == 0);
    CHECK(reap(queue).result == 0 && memcmp(out[1], out[0], BYTES) == 0);
    CHECK(hw_write_zeroes(queue, 0, BYTES, 0, 4) == 0 && hw_submit(queue) == 0);
    CHECK(reap(queue).result == 0);
    CHECK(hw_discard(queue, BYTES, BYTES, 0, 5) == 0);
    CHECK(reap(queue).result == 0);
    CHECK(hw_write(queue, 2 * BYTES, out[0], BYTES, 0, 6) == 0);
    struct pollfd polled = {.fd = hw_eventfd(queue), .events = POLLIN};
    if (hw_arm(queue) == 1) CHECK(poll(&polled, 1, 60000) == 1);
    CHECK(reap(queue).user_data == 6);
    CHECK(hw_flush(queue, 7) == 0);
    CHECK(reap(queue).user_data == 7);
    CHECK(hw_pread(queue, in, BYTES, 0) == 0 && in[0] == 0 && in[BYTES - 1] == 0);
    CHECK(hw_pwrite(queue, out[0], BYTES, 0) == 0 && hw_fsync(queue) == 0);
    int slot = hw_slot(queue);
    CHECK(slot >= 0 && slot < hw_depth(queue));
    char *memory = hw_buffer(queue, (uint32_t)slot);
    CHECK(hw_put(queue, (uint32_t)slot, HW_READ, 0, BYTES, 0, 8) == 0);
    CHECK(hw_put(queue, (uint32_t)slot, HW_READ, 0, BYTES, 0, 8) == -EINVAL);
    CHECK(reap(queue).slot == (uint32_t)slot && memory[BYTES - 1] == 'a');
    CHECK(hw_release(queue, (uint32_t)slot) == 0);
    char *pages = aligned_alloc(4096, 2 * BYTES);
    CHECK(pages && hw_register(queue, pages, 2 * BYTES) == 0);
    memset(pages, 'c', BYTES);
    CHECK(hw_write(queue, 0, pages, BYTES, 0, 9) == 0 && reap(queue).result == 0);
    CHECK(hw_read(queue, 0, pages + BYTES, BYTES, 0, 10) == 0 && hw_unregister(queue, pages) == -EBUSY);
    CHECK(reap(queue).result == 0 && pages[2 * BYTES - 1] == 'c');
    CHECK(hw_unregister(queue, pages) == 0);
    free(pages);
    CHECK(hw_read(queue, 0, in, (uint32_t)hw_slot_bytes(queue) + BYTES, 0, 9) == -EINVAL);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    struct hw_options options = {.size = sizeof options, .queues = 2, .depth = 4, .slot_bytes = 2 * BYTES};
    options.engine = strcmp(argv[3], "threads") == 0 ? HW_ENGINE_THREADS : HW_ENGINE_URING;
    for (int round = 0; round < atoi(argv[2]); round++) {
        struct hw_disk *disk;
        options.flags = round % 2 == 0 ? 0 : HW_OPEN_OWNER_DRIVES;
        options.cache_bytes = round % 3 == 0 ? 1 << 20 : 0;
        options.scheduler = round % 5 == 0 ? "mq-deadline" : NULL;
        CHECK(hw_open(argv[1], &options, &disk) == 0);
        CHECK(hw_capacity(disk) == 1 << 20 && hw_block_size(disk) > 0);
        CHECK(hw_queue_at(disk, 2) == NULL);
        io(hw_queue_at(disk, (uint32_t)round % 2));
        /* One that is in flight, and one that was not submitted. */
        char left[BYTES] = {0};
        CHECK(hw_write(hw_queue_at(disk, 0), 0, left, BYTES, 0, 0) == 0 && hw_submit(hw_queue_at(disk, 0)) == 0);
        CHECK(hw_write(hw_queue_at(disk, 1), 0, left, BYTES, 0, 0) == 0);
        CHECK(hw_close(disk) == 0);
        CHECK(hw_open("mem:sise=1M", NULL, &disk) == -EINVAL && disk == NULL && hw_error()[0] != 0);
    }
    return 0;
}
