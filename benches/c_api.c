/* Reads of 4 KiB through the C API, the loop of `headworks-lab run handle`: ./c_api SPEC IOS DEPTH */
#include <headworks.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCK = 4096, BATCH = 8, DEPTH_MAX = 4096 };

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
    if (argc != 4) return 2;
    static struct hw_completion done[DEPTH_MAX];
    static uint32_t slots[DEPTH_MAX];
    uint64_t ios = strtoull(argv[2], NULL, 10), depth = strtoull(argv[3], NULL, 10), sent = 0, ended = 0, random = 1;
    if (depth < BATCH || depth > DEPTH_MAX) return 2;
    struct hw_options options = {.size = sizeof options, .depth = (uint32_t)depth, .slot_bytes = BLOCK, .engine = HW_ENGINE_THREADS};
    struct hw_disk *disk;
    if (hw_open(argv[1], &options, &disk) < 0) return fail("open");
    struct hw_queue *queue = hw_queue_at(disk, 0);
    uint64_t blocks = (uint64_t)hw_capacity(disk) / BLOCK, free = 0, before = cpu_ns();
    for (int slot; (slot = hw_slot(queue)) >= 0;) slots[free++] = (uint32_t)slot;
    while (ended < ios) {
        while (sent < ios && sent - ended + BATCH <= depth) {
            for (int n = 0; n < BATCH; n++) {
                uint32_t slot = slots[--free];
                random = random * 6364136223846793005u + 1442695040888963407u;
                if (hw_put(queue, slot, HW_READ, (random >> 33) % blocks * BLOCK, BLOCK, HW_HOLE_OK, slot) < 0) return fail("put");
            }
            sent += BATCH;
            hw_submit(queue);
        }
        int count = hw_reap(queue, done, (uint32_t)depth);
        if (count < 0 || (count == 0 && hw_wait(queue, -1) != 1)) return fail("wait");
        for (int n = 0; n < count; n++) {
            if (done[n].result < 0) return fail("read");
            slots[free++] = done[n].slot;
        }
        ended += (uint64_t)count;
    }
    uint64_t cpu = cpu_ns() - before;
    if (hw_close(disk) < 0) return fail("close");
    return printf("%llu reads, %.1f ns of CPU each\n", (unsigned long long)ios, (double)cpu / (double)ios) < 0;
}
