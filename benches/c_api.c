/*
 * Reads through the C API, the loop of `headworks-lab run handle`: ./c_api SPEC IOS DEPTH [slot|copied|registered [BYTES]]
 * Into slots of the queue, or into memory of the program: by a copy out of a slot, or without.
 */
#include <headworks.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 8, DEPTH_MAX = 4096 };

static uint64_t cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "c_api: %s: %s\n", what, hw_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 6) return 2;
    static struct hw_completion done[DEPTH_MAX];
    static uint32_t slots[DEPTH_MAX];
    uint64_t ios = strtoull(argv[2], NULL, 10), depth = strtoull(argv[3], NULL, 10), sent = 0, ended = 0, random = 1;
    const char *memory = argc > 4 ? argv[4] : "slot";
    uint32_t block = argc > 5 ? (uint32_t)atoi(argv[5]) : 4096;
    int in_slots = strcmp(memory, "slot") == 0;
    if (depth < BATCH || depth > DEPTH_MAX || block % 4096 != 0) return 2;
    struct hw_options options = {.size = sizeof options, .depth = (uint32_t)depth, .slot_bytes = block, .engine = HW_ENGINE_THREADS};
    struct hw_disk *disk;
    if (hw_open(argv[1], &options, &disk) < 0) return fail("open");
    struct hw_queue *queue = hw_queue_at(disk, 0);
    char *own = aligned_alloc(4096, depth * block);
    if (!own) return 1;
    memset(own, 1, depth * block);
    if (strcmp(memory, "registered") == 0 && hw_register(queue, own, depth * block) < 0) return fail("register");
    uint64_t blocks = (uint64_t)hw_capacity(disk) / block, free = 0, before = cpu_ns();
    if (in_slots)
        for (int slot; (slot = hw_slot(queue)) >= 0;) slots[free++] = (uint32_t)slot;
    else
        while (free < depth) slots[free] = (uint32_t)free, free++;
    while (ended < ios) {
        while (sent < ios && sent - ended + BATCH <= depth) {
            for (int n = 0; n < BATCH; n++) {
                uint32_t slot = slots[--free];
                random = random * 6364136223846793005u + 1442695040888963407u;
                uint64_t at = (random >> 33) % blocks * block;
                int code = in_slots ? hw_put(queue, slot, HW_READ, at, block, HW_HOLE_OK, slot)
                                    : hw_read(queue, at, own + (uint64_t)slot * block, block, 0, slot);
                if (code < 0) return fail("put");
            }
            sent += BATCH;
            hw_submit(queue);
        }
        int count = hw_reap(queue, done, (uint32_t)depth);
        if (count < 0 || (count == 0 && hw_wait(queue, -1) != 1)) return fail("wait");
        for (int n = 0; n < count; n++) {
            if (done[n].result < 0) return fail("read");
            slots[free++] = (uint32_t)done[n].user_data;
        }
        ended += (uint64_t)count;
    }
    uint64_t cpu = cpu_ns() - before;
    if (hw_close(disk) < 0) return fail("close");
    return printf("%llu reads, %.1f ns of CPU each\n", (unsigned long long)ios, (double)cpu / (double)ios) < 0;
}
