/*
 * User-mode Linux 6.1 sets the floating point registers of its processes by a buffer of 2696 bytes: enough up to AVX-512.
 * A host kernel on a processor with more state (AMX) refuses a set that is not whole: "ptrace set fp regs failed, errno 14".
 * This stands between the two (LD_PRELOAD) and completes what is set: the rest stays at its initial state, as the
 * header in the first part says.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

#define NT_X86_XSTATE ((void *)0x202)

long ptrace(enum __ptrace_request request, ...) {
    static long (*next)(enum __ptrace_request, pid_t, void *, void *);
    static char whole[1 << 16];
    va_list list;
    va_start(list, request);
    pid_t process = va_arg(list, pid_t);
    void *address = va_arg(list, void *);
    void *data = va_arg(list, void *);
    va_end(list);

    if (!next)
        next = (long (*)(enum __ptrace_request, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
    if (request == PTRACE_SETREGSET && address == NT_X86_XSTATE) {
        const struct iovec *part = data;
        struct iovec all = {whole, sizeof whole};
        if (next(PTRACE_GETREGSET, process, address, &all) == 0 && all.iov_len > part->iov_len) {
            memcpy(whole, part->iov_base, part->iov_len);
            data = &all;
            return next(request, process, address, data);
        }
    }
    return next(request, process, address, data);
}
