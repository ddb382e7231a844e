// SPDX-License-Identifier: Apache-2.0
// standin/access.cc: looks at every access of kernels to memory. Files that are
// compiled with -fsanitize=kernel-address call these functions before each
// access, and nothing else of a sanitizer is there.
//
// A read of shared memory that no thread of the block has written ends the
// process, and so does any access to memory of the host, which a GPU would not
// have: all that is neither shared memory, memory that was allocated by the
// driver, stacks of its threads nor a constant of the kernels.
#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "standin/access.h"
#include "standin/block.h"
#include "standin/fiber.h"
#include "standin/kernel_shim.h"

extern "C" int standin_knows(const void *memory, std::size_t bytes,
                             const char **start, const char **end);

namespace standin
{

enum { BEHIND = 128 }; // bytes at least from shared memory to other memory
enum { KNOWN = 8 };

struct range {
    const char *start = nullptr, *end = nullptr;
    bool has(const char *at, std::size_t bytes) const
    {
        return at >= start && at + bytes <= end;
    }
};

struct watched {
    char *start = nullptr;
    std::vector<unsigned char> written; // 1: that byte
};

struct looker {
    bool on = false;
    watched shared[2]; // static and dynamic
    range arguments;
    range known[KNOWN]; // memory of the driver that this launch has used
    unsigned next_known = 0;
};
static thread_local looker mine;

void watch_shared(int which, char *start, std::size_t bytes)
{
    mine.shared[which].start = start;
    mine.shared[which].written.assign(bytes, 0);
}

void watch_arguments(const void *start, const void *end)
{
    mine.arguments = { static_cast<const char *>(start),
                       static_cast<const char *>(end) };
    for (range &r : mine.known) // it may have been given back
        r = {};
}

void watch(bool on)
{
    mine.on = on;
}

// Where code is, as FILE:LINE if addr2line can say so.
static std::string place_of(const void *code, int *line)
{
    Dl_info in = {};
    char command[1200], text[600] = "";
    *line = 0;
    if (!dladdr(code, &in) || !in.dli_fname)
        return "unknown";
    std::snprintf(
        command, sizeof command, "addr2line -e '%s' %#llx", in.dli_fname,
        static_cast<unsigned long long>(static_cast<const char *>(code) -
                                        static_cast<char *>(in.dli_fbase) - 1));
    FILE *out = popen(command, "r");
    if (!out)
        return in.dli_fname;
    if (!std::fgets(text, sizeof text, out))
        text[0] = 0;
    pclose(out);
    char *colon = std::strrchr(text, ':');
    if (!colon)
        return in.dli_fname;
    *line = std::atoi(colon + 1);
    *colon = 0;
    return text;
}

[[noreturn]] static void fail_at(const void *code, const char *what,
                                 const char *why)
{
    int line;
    mine.on = false;
    static std::string file = place_of(code, &line);
    fail({ what, file.c_str(), line }, why);
}

// threadIdx and its like are variables of the thread that runs the block.
static bool is_index(const void *at)
{
    for (const dim3 *i : { &threadIdx, &blockIdx, &blockDim, &gridDim })
        if (at >= i && at < i + 1)
            return true;
    return false;
}

// Of this library; what it has loaded does not move.
static int find_own(struct dl_phdr_info *library, std::size_t, void *found)
{
    static const int here = 0;
    const char *at = reinterpret_cast<const char *>(&here);
    range all;
    for (int i = 0; i < library->dlpi_phnum; i++) {
        const auto &part = library->dlpi_phdr[i];
        if (part.p_type != PT_LOAD)
            continue;
        const char *start =
            reinterpret_cast<const char *>(library->dlpi_addr + part.p_vaddr);
        if (!all.start || start < all.start)
            all.start = start;
        if (start + part.p_memsz > all.end)
            all.end = start + part.p_memsz;
    }
    if (!all.has(at, sizeof here))
        return 0;
    *static_cast<range *>(found) = all;
    return 1;
}

static bool is_own_constant(const char *at, std::size_t bytes)
{
    static const range own = [] {
        range found;
        dl_iterate_phdr(find_own, &found);
        return found;
    }();
    return own.has(at, bytes);
}

static bool is_known(looker &w, const char *at, std::size_t bytes)
{
    for (const range &r : w.known)
        if (r.has(at, bytes))
            return true;
    range &next = w.known[w.next_known];
    if (!standin_knows(at, bytes, &next.start, &next.end))
        return false;
    w.next_known = (w.next_known + 1) % KNOWN;
    return true;
}

static watched *find_shared(looker &w, const char *at, std::size_t bytes)
{
    for (watched &m : w.shared)
        if (m.start && at >= m.start &&
            at + bytes <= m.start + m.written.size())
            return &m;
    return nullptr;
}

void note_write(const void *to, std::size_t bytes)
{
    const char *at = static_cast<const char *>(to);
    if (watched *m = find_shared(mine, at, bytes))
        std::memset(&m->written[static_cast<std::size_t>(at - m->start)], 1,
                    bytes);
}

static void look(const void *address, std::size_t bytes, bool writes,
                 const void *code)
{
    const char *at = static_cast<const char *>(address);
    looker &w = mine;
    if (!w.on || bytes == 0)
        return;
    if (watched *m = find_shared(w, at, bytes)) {
        unsigned char *first =
            &m->written[static_cast<std::size_t>(at - m->start)];
        if (writes)
            std::memset(first, 1, bytes);
        else if (std::memchr(first, 0, bytes))
            fail_at(code, "a read", "no thread has written this shared memory");
        return;
    }
    const watched &dynamic = w.shared[1];
    if (dynamic.start && at >= dynamic.start &&
        at < dynamic.start + dynamic.written.size() + BEHIND) {
        std::string why = "behind its " +
                          std::to_string(dynamic.written.size()) +
                          " bytes of dynamic shared memory";
        fail_at(code, writes ? "a write" : "a read", why.c_str());
    }
    if (is_known(w, at, bytes) || w.arguments.has(at, bytes) ||
        fiber_has(address) || is_index(at) || is_own_constant(at, bytes))
        return;
    fail_at(code, writes ? "a write" : "a read",
            "this is memory of the host, which a GPU has not");
}

} // namespace standin

// What the compiler calls.
#define STANDIN_ACCESS(bytes)                                         \
    extern "C" void __asan_load##bytes##_noabort(void *at);           \
    extern "C" void __asan_store##bytes##_noabort(void *at);          \
    extern "C" void __asan_load##bytes##_noabort(void *at)            \
    {                                                                 \
        standin::look(at, bytes, false, __builtin_return_address(0)); \
    }                                                                 \
    extern "C" void __asan_store##bytes##_noabort(void *at)           \
    {                                                                 \
        standin::look(at, bytes, true, __builtin_return_address(0));  \
    }

STANDIN_ACCESS(1)
STANDIN_ACCESS(2)
STANDIN_ACCESS(4)
STANDIN_ACCESS(8)
STANDIN_ACCESS(16)

extern "C" void __asan_loadN_noabort(void *at, std::size_t bytes);
extern "C" void __asan_storeN_noabort(void *at, std::size_t bytes);
extern "C" void __asan_handle_no_return();
extern "C" void __asan_before_dynamic_init(void *);
extern "C" void __asan_after_dynamic_init();

extern "C" void __asan_loadN_noabort(void *at, std::size_t bytes)
{
    standin::look(at, bytes, false, __builtin_return_address(0));
}
extern "C" void __asan_storeN_noabort(void *at, std::size_t bytes)
{
    standin::look(at, bytes, true, __builtin_return_address(0));
}
extern "C" void __asan_handle_no_return()
{
}
extern "C" void __asan_before_dynamic_init(void *)
{
}
extern "C" void __asan_after_dynamic_init()
{
}
