/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of PyTorch's CPU tensors in segments that the ranks of a host reach,
 * so that collectives on it need no copy.
 *
 * An allocator stands before PyTorch's own and takes what is large. Blocks are
 * kept by size class when a tensor is freed, so that a training makes no new
 * ones after its first steps. One lock guards the pool. A child made by fork
 * has copies of the blocks it inherits, and makes its own tensors as PyTorch
 * does. */
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <oarsong/shared.h>

#include "_torch_memory.h"

namespace
{

constexpr int bits = 64, steps = 4; /* size classes in each doubling */

struct Block {
    size_t bytes;
    int size_class;
    int generation; /* of the process that made it */
};

struct Pool {
    std::mutex lock;
    std::array<std::vector<void *>, bits * steps> free;
    std::unordered_map<void *, Block> used;
    std::atomic<size_t> least{ 0 }; /* 0: not in use */
    int generation = 0;
    Shared_stats stats = {};
};

/* Never destroyed: tensors may live longer than the module. */
Pool &pool()
{
    static Pool *made = new Pool;
    return *made;
}

/* Gives the class of a size, and the bytes of its blocks: powers of two and
 * three sizes between each. */
int size_class_of(size_t bytes, size_t *rounded)
{
    int top = bits - 1 - __builtin_clzll(bytes);
    size_t step = size_t(1) << (top - 2), least = size_t(1) << top;
    size_t above = (bytes - least + step - 1) / step;

    *rounded = least + above * step;
    return top * steps + int(above); /* 4 is the next power's 0 */
}

/* Returns the data of a block; nullptr: there is no shared memory left. */
void *take(int size_class, size_t bytes)
{
    Pool &p = pool();
    void *data = nullptr;
    std::lock_guard<std::mutex> guard(p.lock);
    std::vector<void *> &kept = p.free[size_t(size_class)];

    if (!kept.empty()) {
        data = kept.back();
        kept.pop_back();
        p.stats.kept_bytes -= bytes;
    } else if (oar_shared_alloc(bytes, &data) != OAR_OK) {
        return nullptr;
    } else {
        p.stats.allocations++;
    }
    p.stats.used_bytes += bytes;
    p.used[data] = Block{ bytes, size_class, p.generation };
    return data;
}

/* Frees what the allocator gave. PyTorch calls this with memory of its own
 * allocator as well, where it frees by the pointer alone. */
void give_back(void *data)
{
    Pool &p = pool();
    std::unique_lock<std::mutex> guard(p.lock);
    auto found = p.used.find(data);

    if (found == p.used.end()) {
        guard.unlock();
        c10::GetDefaultCPUAllocator()->raw_deallocate(data);
        return;
    }
    Block block = found->second;
    p.used.erase(found);
    if (block.generation != p.generation) {
        munmap(data, block.bytes); /* this child's copy */
        return;
    }
    p.stats.used_bytes -= block.bytes;
    /* What an aborted operation might have touched is private. */
    if (oar_shared_reachable(data, block.bytes)) {
        p.free[size_t(block.size_class)].push_back(data);
        p.stats.kept_bytes += block.bytes;
    } else {
        oar_shared_free(data);
    }
}

struct Allocator : c10::Allocator {
    /* Which of these there are depends on the version, so none says
     * `override`. */
    c10::DataPtr allocate(size_t bytes)
    {
        return make(bytes);
    }
    c10::DataPtr allocate(size_t bytes) const
    {
        return make(bytes);
    }
    void copy_data(void *to, const void *from, size_t bytes) const
    {
        memcpy(to, from, bytes);
    }

    c10::DeleterFnPtr raw_deleter() const override
    {
        return give_back;
    }

    static c10::DataPtr make(size_t bytes)
    {
        size_t least = pool().least, rounded = 0;

        if (least == 0 || bytes < least)
            return c10::GetDefaultCPUAllocator()->allocate(bytes);
        int size_class = size_class_of(bytes, &rounded);
        void *data = take(size_class, rounded);
        if (data == nullptr)
            return c10::GetDefaultCPUAllocator()->allocate(bytes);
        return { data, data, give_back, c10::Device(c10::DeviceType::CPU) };
    }
};

void before_fork()
{
    pool().lock.lock();
}

void after_fork_in_parent()
{
    pool().lock.unlock();
}

void after_fork_in_child()
{
    Pool &p = pool();

    for (std::vector<void *> &kept : p.free)
        kept.clear();
    p.least = 0;
    p.generation++;
    p.stats = {};
    p.lock.unlock();
}

} // namespace

void share_memory(size_t least)
{
    static Allocator allocator;
    static std::once_flag once;

    std::call_once(once, [] {
        void *first = nullptr;

        /* The library's handlers of fork come before these, so that its lock
         * is taken after the pool's, as everywhere. */
        if (oar_shared_alloc(1, &first) == OAR_OK)
            oar_shared_free(first);
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        oar_shared_copy_on_fork(1);
        c10::SetAllocator(c10::DeviceType::CPU, &allocator, 255);
    });
    std::lock_guard<std::mutex> guard(pool().lock);
    pool().least = least;
}

/* By itself glibc gives memory back to the system as soon as a little of it is
 * free, and takes it again, page by page, in the next step. */
void keep_freed_memory()
{
#ifdef __GLIBC__
    constexpr int largest = 32 << 20; /* block in the heap; glibc's limit */
    constexpr int kept = 0x7fffffff;
    const char *tunables = std::getenv("GLIBC_TUNABLES");

    if (std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
        std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
        (tunables != nullptr && strstr(tunables, "glibc.malloc.") != nullptr))
        return;
    mallopt(M_MMAP_THRESHOLD, largest);
    mallopt(M_TRIM_THRESHOLD, kept);
#endif
}

Shared_stats shared_stats()
{
    std::lock_guard<std::mutex> guard(pool().lock);
    return pool().stats;
}
