// SPDX-License-Identifier: GPL-2.0-only
/*
 * fio's external engine: jobs of fio on a disk of Headworks, in fio's own process, through the C API.
 *
 *   fio --ioengine=external:libheadworks_fio.so --spec=file:path=disk.img,size=1G --name=a --rw=randread --iodepth=32
 *
 * Options: spec= (what `headworks serve` takes; with commas in it, in a job file or quoted), cache= (bytes of the page cache), scheduler=, and
 * owner=job|shared: a disk for each job, or one for all jobs that are threads (thread=1) and name the same spec.
 *
 * fio's buffers are the queue's slots where their size allows (multiples of 4 KiB), so that nothing is copied on the way to the device;
 * buffers of other sizes are copied. This file is linked with fio's headers, hence its licence; the library that it calls has its own.
 */
#include <errno.h>
#include <headworks.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

/* The tests compile one engine for a fio that there is not. */
#ifndef HW_IOOPS_VERSION
#define HW_IOOPS_VERSION FIO_IOOPS_VERSION
#endif

enum { PAGE = 4096, SHARED_MAX = 64 };
enum { OWNER_JOB, OWNER_SHARED };

struct hw_fio_options {
	void *pad; /* fio's own */
	char *spec;
	unsigned long long cache;
	char *scheduler;
	unsigned int owner;
};

/* A disk that several jobs use, each one queue of it. */
struct hw_shared {
	char *spec;
	struct hw_disk *disk;
	unsigned int queues, users;
};

struct hw_job {
	struct hw_disk *disk;
	struct hw_shared *shared;
	struct hw_queue *queue;
	struct hw_completion *done;
	/* The first slot's memory if fio's buffers are slots, and the slot of each. */
	char *base;
	uint32_t *slots;
	unsigned long long slot_bytes;
};

static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hw_shared shared_disks[SHARED_MAX];

static struct fio_option options[] = {
	{
		.name = "spec",
		.lname = "Headworks SPEC",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct hw_fio_options, spec),
		.help = "The disk, as `headworks serve` takes it",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "cache",
		.lname = "Headworks page cache",
		.type = FIO_OPT_ULL,
		.off1 = offsetof(struct hw_fio_options, cache),
		.help = "Bytes of the page cache; 0: none",
		.def = "0",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "scheduler",
		.lname = "Headworks scheduler",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct hw_fio_options, scheduler),
		.help = "none, mq-deadline or bfq",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "owner",
		.lname = "Headworks owner",
		.type = FIO_OPT_STR,
		.off1 = offsetof(struct hw_fio_options, owner),
		.help = "A disk for each job, or one for all",
		.def = "job",
		.posval = {
			{ .ival = "job", .oval = OWNER_JOB, .help = "a disk for each job" },
			{ .ival = "shared", .oval = OWNER_SHARED, .help = "one for all jobs that are threads and name the same spec" },
		},
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{ .name = NULL },
};

static int complain(const char *what, int code)
{
	log_err("headworks: %s: %s: %s\n", what, strerror(-code), hw_error());
	return 1;
}

static struct hw_options open_options(struct thread_data *td, unsigned int queues)
{
	struct hw_fio_options *o = td->eo;
	unsigned long long bytes = td_max_bs(td);

	return (struct hw_options){
		.size = sizeof(struct hw_options),
		.flags = td_write(td) || td_trim(td) ? 0 : HW_OPEN_READ_ONLY,
		.queues = queues,
		.depth = td->o.iodepth,
		.slot_bytes = (bytes + PAGE - 1) / PAGE * PAGE,
		.cache_bytes = o->cache,
		.scheduler = o->scheduler,
	};
}

/* Finds the size: fio divides it among jobs before any of them runs. */
static int setup(struct thread_data *td)
{
	struct hw_fio_options *o = td->eo;
	struct hw_options opened;
	struct hw_disk *disk;
	struct fio_file *f;
	unsigned int i;
	int64_t size;
	int code;

	if (!o->spec) {
		log_err("headworks: spec= is missing: what `headworks serve` takes, such as spec=file:path=disk.img,size=1G\n");
		return 1;
	}
	opened = open_options(td, 1);
	opened.cache_bytes = 0;
	code = hw_open(o->spec, &opened, &disk);
	if (code < 0)
		return complain(o->spec, code);
	size = hw_capacity(disk);
	code = hw_close(disk);
	if (code < 0)
		return complain(o->spec, code);
	if (!td->files_index) {
		add_file(td, "headworks", 0, 0);
		td->o.nr_files = td->o.nr_files ?: 1;
		td->o.open_files++;
	}
	for_each_file(td, f, i) {
		f->filetype = FIO_TYPE_BLOCK;
		f->real_file_size = size;
		fio_file_set_size_known(f);
	}
	return 0;
}

static int join_shared(struct hw_job *job, struct thread_data *td)
{
	struct hw_fio_options *o = td->eo;
	struct hw_shared *one = NULL, *place = NULL;
	struct hw_options opened = open_options(td, thread_number);
	int i, code = 0;

	pthread_mutex_lock(&shared_lock);
	for (i = 0; i < SHARED_MAX; i++) {
		if (shared_disks[i].disk && !strcmp(shared_disks[i].spec, o->spec))
			one = &shared_disks[i];
		else if (!shared_disks[i].disk && !place)
			place = &shared_disks[i];
	}
	if (!one && place) {
		/* Of all jobs: what some only read, others may write. */
		opened.flags = 0;
		code = hw_open(o->spec, &opened, &place->disk);
		if (code == 0) {
			one = place;
			one->spec = strdup(o->spec);
			one->queues = one->users = 0;
		}
	}
	if (one) {
		job->queue = hw_queue_at(one->disk, one->queues);
		if (job->queue) {
			one->queues++;
			one->users++;
			job->shared = one;
		}
	}
	pthread_mutex_unlock(&shared_lock);
	if (code < 0)
		return complain(o->spec, code);
	if (!job->queue)
		return complain("owner=shared", -ENOSPC);
	return 0;
}

static void leave(struct hw_job *job)
{
	struct hw_disk *closed = job->disk;
	int code;

	if (job->shared) {
		pthread_mutex_lock(&shared_lock);
		if (--job->shared->users == 0) {
			closed = job->shared->disk;
			job->shared->disk = NULL;
			free(job->shared->spec);
		}
		pthread_mutex_unlock(&shared_lock);
	}
	code = hw_close(closed);
	if (code < 0)
		complain("the disk was closed", code);
}

static int init(struct thread_data *td)
{
	struct hw_fio_options *o = td->eo;
	struct hw_options opened = open_options(td, 1);
	struct hw_job *job = calloc(1, sizeof(*job));
	int code;

	if (!job)
		return 1;
	job->done = calloc(td->o.iodepth, sizeof(*job->done));
	job->slots = calloc(td->o.iodepth, sizeof(*job->slots));
	job->slot_bytes = opened.slot_bytes;
	td->io_ops_data = job;
	if (!job->done || !job->slots)
		return 1;
	if (o->owner == OWNER_SHARED)
		return join_shared(job, td);
	code = hw_open(o->spec, &opened, &job->disk);
	if (code < 0)
		return complain(o->spec, code);
	job->queue = hw_queue_at(job->disk, 0);
	return 0;
}

static void cleanup(struct thread_data *td)
{
	struct hw_job *job = td->io_ops_data;

	if (!job)
		return;
	leave(job);
	free(job->done);
	free(job->slots);
	free(job);
	td->io_ops_data = NULL;
}

/* All slots as fio's buffers, if they lie one behind the other as fio wants them. */
static bool take_slots(struct hw_job *job, struct thread_data *td)
{
	unsigned int count = td->o.iodepth, taken, i;
	bool fits = td_max_bs(td) == job->slot_bytes && hw_slot_bytes(job->queue) == (int64_t)job->slot_bytes;
	char *base = NULL;

	if (!fits || hw_depth(job->queue) != (int)count)
		return false;
	for (taken = 0; taken < count; taken++) {
		int slot = hw_slot(job->queue);
		char *memory = slot < 0 ? NULL : hw_buffer(job->queue, slot);

		if (!memory)
			break;
		if (!base || memory < base)
			base = memory;
		job->slots[taken] = slot;
	}
	fits = taken == count;
	for (i = 0; fits && i < count; i++) {
		char *memory = hw_buffer(job->queue, i);

		fits = memory == base + i * job->slot_bytes;
	}
	if (!fits) {
		while (taken > 0)
			hw_release(job->queue, job->slots[--taken]);
		return false;
	}
	job->base = base;
	return true;
}

static int iomem_alloc(struct thread_data *td, size_t total)
{
	struct hw_job *job = td->io_ops_data;

	/* `total` has room to align what is not: slots begin at pages, so that fio never uses it. */
	if (take_slots(job, td))
		td->orig_buffer = job->base;
	else
		td->orig_buffer = malloc(total);
	return td->orig_buffer ? 0 : ENOMEM;
}

static void iomem_free(struct thread_data *td)
{
	struct hw_job *job = td->io_ops_data;

	/* Slots are the queue's. */
	if (!job || !job->base)
		free(td->orig_buffer);
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u)
{
	struct hw_job *job = td->io_ops_data;
	uint64_t tag = (uint64_t)(uintptr_t)io_u, at = io_u->offset;
	uint64_t slot = 0;
	uint32_t op, len = io_u->xfer_buflen;
	int code;

	fio_ro_check(td, io_u);
	if (job->base)
		slot = ((char *)io_u->buf - job->base) / job->slot_bytes;
	switch (io_u->ddir) {
	case DDIR_READ:
		op = HW_READ;
		break;
	case DDIR_WRITE:
		op = HW_WRITE;
		break;
	case DDIR_TRIM:
		op = HW_DISCARD;
		break;
	default:
		op = HW_FLUSH, at = len = 0;
	}
	if (job->base && (op > HW_WRITE || io_u->xfer_buf == io_u->buf))
		code = hw_put(job->queue, slot, op, at, len, 0, tag);
	else if (op == HW_READ)
		code = hw_read(job->queue, at, io_u->xfer_buf, len, 0, tag);
	else if (op == HW_WRITE)
		code = hw_write(job->queue, at, io_u->xfer_buf, len, 0, tag);
	else if (op == HW_DISCARD)
		code = hw_discard(job->queue, at, len, 0, tag);
	else
		code = hw_flush(job->queue, tag);
	if (code == -EAGAIN)
		return FIO_Q_BUSY;
	if (code < 0) {
		log_err("headworks: %s\n", hw_error());
		io_u->error = -code;
		return FIO_Q_COMPLETED;
	}
	return FIO_Q_QUEUED;
}

static int commit(struct thread_data *td)
{
	struct hw_job *job = td->io_ops_data;

	return hw_submit(job->queue);
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *limit)
{
	struct hw_job *job = td->io_ops_data;
	int wait_ms = limit ? limit->tv_sec * 1000 + (limit->tv_nsec + 999999) / 1000000 : -1;
	unsigned int count = 0;

	if (max > td->o.iodepth)
		max = td->o.iodepth;
	for (;;) {
		int code = hw_reap(job->queue, job->done + count, max - count);

		if (code < 0)
			return code;
		count += code;
		if (count >= min)
			return count;
		code = hw_wait(job->queue, wait_ms);
		if (code == 0)
			return count;
		if (code < 0) {
			complain("waiting", code);
			return code;
		}
	}
}

static struct io_u *event(struct thread_data *td, int n)
{
	struct hw_job *job = td->io_ops_data;
	struct hw_completion *done = &job->done[n];
	struct io_u *io_u = (struct io_u *)(uintptr_t)done->user_data;

	io_u->error = -done->result;
	io_u->resid = 0;
	return io_u;
}

static int open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

/* The name that fio looks for. */
struct ioengine_ops ioengine = {
	.name = "headworks",
	.version = HW_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL,
	.setup = setup,
	.init = init,
	.cleanup = cleanup,
	.iomem_alloc = iomem_alloc,
	.iomem_free = iomem_free,
	.queue = queue,
	.commit = commit,
	.getevents = getevents,
	.event = event,
	.open_file = open_file,
	.close_file = close_file,
	.invalidate = invalidate,
	.options = options,
	.option_struct_size = sizeof(struct hw_fio_options),
};
