// SPDX-License-Identifier: Apache-2.0
// standin/block.cc: runs the blocks of a launch, one after the other, in an
// order from a seed. The threads of a block run one after the other on one
// fiber until one has to wait for others; that one keeps the fiber, and the
// next threads get another. So a kernel without barriers needs one fiber.
//
// What hardware leaves undefined ends the process with a sentence: a barrier
// that a thread of the block never reaches, or reaches elsewhere in the source;
// a shuffle whose mask names lanes that do something else.
#include "standin/block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "standin/access.h"
#include "standin/fiber.h"
#include "standin/kernel_shim.h"

__thread dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace standin
{

enum { MOST_THREADS = 1024, MOST_SHARED = 228 << 10, ALIGNMENT = 128 };
enum { POISON = 0xff }; // NaN in every float type, -1 as an integer

enum state : unsigned char { FRESH, RUNS, WAITS, ENDED };

struct late_copy {
    void *to;
    const void *from;
    std::size_t bytes;
};

struct thread {
    state is;
    fiber *on;
    site at;
    unsigned mask; // of lanes; 0: waits for the block
    void *mine;
    int predicate;
    std::vector<std::vector<late_copy>> copies; // the last group is open
};

struct runner {
    const standin_kernel *kernel;
    void *const *argument;
    standin_grid grid;
    unsigned threads, started, ended, arrived;
    int predicates, answer;
    unsigned self;          // the thread that runs
    unsigned first_arrived; // of those that wait for the block
    unsigned short order[MOST_THREADS];
    unsigned waiting[MOST_THREADS / 32]; // lanes that wait for lanes
    unsigned gone[MOST_THREADS / 32];    // lanes that have ended
    std::deque<unsigned> ready;
    std::vector<thread> all;
    char *dynamic; // shared memory
};

static thread_local runner *now;

// ---- texts -----------------------------------------------------------------

static dim3 index_of(unsigned t)
{
    const unsigned *size = now->grid.threads;
    return { t % size[0], t / size[0] % size[1], t / size[0] / size[1] };
}

static const char *short_name(const char *file)
{
    const char *slash = std::strrchr(file, '/');
    return slash ? slash + 1 : file;
}

static std::string name_thread(unsigned t)
{
    dim3 i = index_of(t);
    return "thread (" + std::to_string(i.x) + "," + std::to_string(i.y) + "," +
           std::to_string(i.z) + ")";
}

static std::string name_site(const site &at)
{
    return std::string(at.what) + " at " + short_name(at.file) + ":" +
           std::to_string(at.line);
}

static std::string what_it_does(unsigned t)
{
    const thread &other = now->all[t];
    if (other.is == WAITS)
        return "waits in " + name_site(other.at);
    return other.is == ENDED ? "has ended" : "has not come";
}

[[noreturn]] void fail(site at, const char *why)
{
    standin_die("kernel %s, block (%u,%u,%u), %s, %s: %s", now->kernel->name,
                blockIdx.x, blockIdx.y, blockIdx.z,
                name_thread(now->self).c_str(), name_site(at).c_str(), why);
}

// t: the thread that waits or calls; other: the one that is not there.
[[noreturn]] static void fail_missing(unsigned t, const site &at,
                                      unsigned other)
{
    std::string why =
        name_thread(other) + " is not there: it " + what_it_does(other);
    now->self = t;
    fail(at, why.c_str());
}

// ---- running ---------------------------------------------------------------

static void become(unsigned t)
{
    now->self = t;
    threadIdx = index_of(t);
}

static void end_thread()
{
    thread &me = now->all[now->self];
    me.is = ENDED;
    now->ended++;
    if (!me.copies.empty()) {
        for (const auto &group : me.copies)
            if (!group.empty())
                fail({ "cp.async", now->kernel->file, 0 },
                     "the thread ended without waiting for its copies");
        me.copies.clear();
    }
    now->gone[now->self / 32] |= 1u << (now->self % 32);
    if (now->arrived) {
        unsigned t = now->first_arrived;
        fail_missing(t, now->all[t].at, now->self);
    }
}

// What every fiber does: starts threads as long as there are any.
static void run_threads()
{
    for (;;) {
        while (now->started < now->threads) {
            become(now->order[now->started++]);
            now->all[now->self].is = RUNS;
            now->kernel->call(now->kernel->function, now->argument);
            end_thread();
        }
        fiber_give();
    }
}

// Lets others run until this thread is ready.
static void wait_here()
{
    unsigned t = now->self;
    now->all[t].is = WAITS;
    now->all[t].on = fiber_self();
    fiber_leave();
    become(t);
}

static void make_ready(unsigned t)
{
    now->all[t].is = RUNS;
    now->ready.push_back(t);
}

[[noreturn]] static void report_deadlock()
{
    for (unsigned t = 0; t < now->threads; t++) {
        const thread &w = now->all[t];
        if (w.is != WAITS)
            continue;
        for (unsigned o = 0; o < now->threads; o++) {
            bool needed =
                w.mask == 0 || (o / 32 == t / 32 && (w.mask >> (o % 32) & 1));
            const thread &other = now->all[o];
            if (needed && (other.is != WAITS || other.mask != w.mask))
                fail_missing(t, w.at, o);
        }
    }
    standin_die("kernel %s: its threads wait for each other",
                now->kernel->name);
}

static void run_block()
{
    now->started = now->ended = now->arrived = 0;
    std::memset(now->gone, 0, sizeof now->gone);
    for (thread &t : now->all)
        t.is = FRESH;
    for (;;) {
        if (now->started < now->threads)
            fiber_enter(fiber_take(run_threads));
        else if (!now->ready.empty()) {
            unsigned t = now->ready.front();
            now->ready.pop_front();
            fiber_enter(now->all[t].on);
        } else if (now->ended < now->threads)
            report_deadlock();
        else
            return;
    }
}

// ---- barriers --------------------------------------------------------------

static bool same_site(const site &a, const site &b)
{
    return a.line == b.line &&
           (a.what == b.what || std::strcmp(a.what, b.what) == 0) &&
           (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

// Fails if another thread waits for the block at another place, or has ended.
static void check_barrier(const site &at)
{
    if (now->ended)
        for (unsigned t = 0; t < now->threads; t++)
            if (now->all[t].is == ENDED)
                fail_missing(now->self, at, t);
    if (now->arrived && !same_site(now->all[now->first_arrived].at, at))
        fail_missing(now->self, at, now->first_arrived);
}

int meet_block(int predicate, site at)
{
    thread &me = now->all[now->self];
    check_barrier(at);
    me.at = at;
    me.mask = 0;
    if (now->arrived++ == 0) {
        now->predicates = 0;
        now->first_arrived = now->self;
    }
    now->predicates += predicate != 0;
    if (now->arrived < now->threads) {
        wait_here();
        return now->answer;
    }
    now->answer = now->predicates;
    now->arrived = 0;
    for (unsigned i = 0; i < now->threads; i++)
        if (now->all[now->order[i]].is == WAITS)
            make_ready(now->order[i]);
    return now->answer;
}

// Lanes of the warp of thread t that the block has.
static unsigned lanes_there(unsigned t)
{
    unsigned left = now->threads - t / 32 * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}

static unsigned first_bit(unsigned bits)
{
    return static_cast<unsigned>(__builtin_ctz(bits));
}

void meet_lanes(unsigned mask, void *mine, lanes_fn fn, site at)
{
    unsigned self = now->self, first = self / 32 * 32, bit = 1u << (self % 32);
    unsigned wanted = mask & lanes_there(self);
    unsigned &waiting = now->waiting[self / 32];
    void *lane[32] = {};
    thread &me = now->all[self];
    if (!(mask & bit))
        fail(at, "its own lane is not in the mask");
    me.at = at;
    me.mask = mask;
    me.mine = mine;
    if (((waiting | bit) & wanted) != wanted) {
        if (wanted & now->gone[self / 32])
            fail_missing(self, at,
                         first + first_bit(wanted & now->gone[self / 32]));
        waiting |= bit;
        wait_here();
        return;
    }
    for (unsigned left = wanted; left; left &= left - 1) {
        unsigned i = first_bit(left);
        const thread &other = now->all[first + i];
        if (other.mask != mask || !same_site(other.at, at))
            fail_missing(self, at, first + i);
        lane[i] = other.mine;
    }
    waiting &= ~wanted;
    fn(lane, mask);
    for (unsigned i = 0; i < 32; i++)
        if ((wanted & ~bit) >> i & 1)
            make_ready(first + i);
}

void warp_of_32(site at)
{
    if (lanes_there(now->self) != 0xffffffffu)
        fail(at, "its warp has fewer than 32 lanes");
}

// ---- copies ----------------------------------------------------------------

void copy_later(void *to, const void *from, std::size_t bytes)
{
    auto &groups = now->all[now->self].copies;
    if (groups.empty())
        groups.emplace_back();
    groups.back().push_back({ to, from, bytes });
}

void commit_copies()
{
    auto &groups = now->all[now->self].copies;
    if (groups.empty())
        groups.emplace_back();
    groups.emplace_back();
}

void wait_copies(int groups_left, site at)
{
    auto &groups = now->all[now->self].copies;
    if (groups_left < 0)
        fail(at, "it waits for fewer than no groups");
    while (groups.size() > static_cast<std::size_t>(groups_left) + 1) {
        for (const late_copy &c : groups.front()) {
            if (c.from)
                std::memcpy(c.to, c.from, c.bytes);
            else
                std::memset(c.to, 0, c.bytes);
            note_write(c.to, c.bytes);
        }
        groups.erase(groups.begin());
    }
}

// ---- shared memory ---------------------------------------------------------

// Ends at a page without access.
struct room {
    char *memory = nullptr;
    std::size_t bytes = 0;
    char *end();
    ~room()
    {
        if (memory)
            munmap(memory, bytes);
    }
};

char *room::end()
{
    std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t usable = (MOST_SHARED + page - 1) / page * page;
    if (!memory) {
        bytes = usable + page;
        void *at =
            mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED ||
            mprotect(at, usable, PROT_READ | PROT_WRITE) != 0)
            standin_die("no memory for the shared memory of a block");
        memory = static_cast<char *>(at);
    }
    return memory + usable;
}

static thread_local room dynamic_room;

void *shared_memory()
{
    return now->dynamic;
}

std::size_t shared_memory_bytes()
{
    return now->grid.shared_bytes;
}

static std::size_t padded(std::size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void poison_shared()
{
    const standin_kernel *k = now->kernel;
    if (k->shared)
        std::memset(k->shared, POISON,
                    static_cast<std::size_t>(k->shared_end - k->shared));
    if (now->dynamic)
        std::memset(now->dynamic, POISON, padded(now->grid.shared_bytes));
    watch_shared(0, k->shared,
                 static_cast<std::size_t>(k->shared_end - k->shared));
    watch_shared(1, now->dynamic, now->grid.shared_bytes);
}

static void check_end_of_shared()
{
    std::size_t bytes = now->grid.shared_bytes;
    for (std::size_t i = bytes; now->dynamic && i < padded(bytes); i++)
        if (static_cast<unsigned char>(now->dynamic[i]) != POISON)
            standin_die("kernel %s, block (%u,%u,%u): something wrote behind "
                        "its %zu bytes of dynamic shared memory",
                        now->kernel->name, blockIdx.x, blockIdx.y, blockIdx.z,
                        bytes);
}

// ---- launches --------------------------------------------------------------

static std::uint64_t next_random(std::uint64_t *seed)
{
    std::uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A walk through 0 .. count-1: start, then step further each time.
struct seeded_walk {
    std::uint64_t start, step, count;
    seeded_walk(std::uint64_t n, std::uint64_t *seed)
        : start(next_random(seed) % n), step(next_random(seed) % n), count(n)
    {
        while (!is_prime_to(step))
            step = (step + 1) % count;
    }
    bool is_prime_to(std::uint64_t a) const
    {
        std::uint64_t b = count;
        while (a) {
            std::uint64_t rest = b % a;
            b = a;
            a = rest;
        }
        return b == 1;
    }
    std::uint64_t at(std::uint64_t i) const
    {
        return static_cast<std::uint64_t>(
            (static_cast<unsigned __int128>(i) * step + start) % count);
    }
};

// Warps in any order; their lanes forwards or backwards.
static void choose_order(std::uint64_t *seed)
{
    unsigned warps = (now->threads + 31) / 32, n = 0;
    bool backwards = next_random(seed) & 1;
    seeded_walk w(warps, seed);
    for (unsigned i = 0; i < warps; i++) {
        unsigned first = static_cast<unsigned>(w.at(i)) * 32;
        unsigned lanes = now->threads - first < 32 ? now->threads - first : 32;
        for (unsigned lane = 0; lane < lanes; lane++)
            now->order[n++] = static_cast<unsigned short>(
                first + (backwards ? lanes - 1 - lane : lane));
    }
}

static void run_all()
{
    const unsigned *size = now->grid.blocks;
    std::uint64_t seed = now->grid.seed;
    std::uint64_t count = static_cast<std::uint64_t>(size[0]) * size[1];
    seeded_walk w(count * size[2], &seed);
    choose_order(&seed);
    for (std::uint64_t i = 0; i < w.count; i++) {
        std::uint64_t b = w.at(i);
        blockIdx = { static_cast<unsigned>(b % size[0]),
                     static_cast<unsigned>(b / size[0] % size[1]),
                     static_cast<unsigned>(b / count) };
        poison_shared();
        watch(true);
        run_block();
        watch(false);
        check_end_of_shared();
    }
}

} // namespace standin

void standin_run_blocks(const standin_kernel *kernel, void *const *argument,
                        const standin_grid *grid)
{
    using namespace standin;
    static thread_local runner mine;
    const unsigned *b = grid->blocks, *t = grid->threads;
    now = &mine;
    mine.kernel = kernel;
    mine.argument = argument;
    mine.grid = *grid;
    mine.threads = t[0] * t[1] * t[2];
    if (mine.all.size() != mine.threads)
        mine.all.resize(mine.threads);
    mine.dynamic = grid->shared_bytes
                       ? dynamic_room.end() - padded(grid->shared_bytes)
                       : nullptr;
    const int last = kernel->count - 1;
    if (last >= 0)
        watch_arguments(argument, static_cast<char *>(argument[last]) +
                                      kernel->bytes[last]);
    gridDim = { b[0], b[1], b[2] };
    blockDim = { t[0], t[1], t[2] };
    if (kernel->shared)
        pthread_mutex_lock(kernel->shared_lock);
    run_all();
    if (kernel->shared)
        pthread_mutex_unlock(kernel->shared_lock);
    now = nullptr;
}
