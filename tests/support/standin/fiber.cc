// SPDX-License-Identifier: Apache-2.0
// standin/fiber.cc: fibers: a switch of stacks that costs a few nanoseconds
// (swapcontext makes a call to the kernel each time), with a page without
// access below each stack. Sanitizers of addresses are told of each switch;
// that of threads takes all fibers of a thread for one, which they are: nothing
// that they do is concurrent.
#include "standin/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "standin/kernel.h"

#if defined(__SANITIZE_ADDRESS__)
#define STANDIN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define STANDIN_ASAN 1
#endif
#endif
#ifdef STANDIN_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace standin
{

#if defined(STANDIN_ASAN) || defined(__SANITIZE_THREAD__)
enum { STACK_BYTES = 256 << 10 };
#else
enum { STACK_BYTES = 64 << 10 };
#endif

#if defined(__x86_64__) || defined(__aarch64__)
typedef void *place; // of a stack that does not run: its pointer
extern "C" void standin_switch(place *from, place *to);
#else
typedef ucontext_t place;
static void standin_switch(place *from, place *to)
{
    swapcontext(from, to);
}
#endif

struct fiber {
    place at{};
    char *memory, *stack; // the stack lies above a page without access
    void (*main)();
    void *fake = nullptr; // of the sanitizer
};

// What a thread of the operating system has.
struct home {
    place at{};
    fiber *runs = nullptr;
    std::vector<fiber *> all, pool;
    const void *stack = nullptr; // of the thread itself
    std::size_t stack_bytes = 0;
    void *fake = nullptr;
    ~home();
};

static thread_local home here;

static std::size_t page_bytes()
{
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

home::~home()
{
    for (fiber *f : all) {
        munmap(f->memory, STACK_BYTES + page_bytes());
        delete f;
    }
}

bool fiber_has(const void *memory)
{
    const char *at = static_cast<const char *>(memory);
    auto has = [at](const fiber *f) {
        return at >= f->stack && at < f->stack + STACK_BYTES;
    };
    if (here.runs && has(here.runs))
        return true;
    for (const fiber *f : here.all)
        if (has(f))
            return true;
    return false;
}

// ---- the switch ------------------------------------------------------------

#if defined(__x86_64__)
asm(".text\n"
    ".hidden standin_switch\n"
    ".globl standin_switch\n"
    ".type standin_switch, @function\n"
    "standin_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
    "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq (%rsi), %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n"
    "    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n"
    ".size standin_switch, .-standin_switch\n");
#elif defined(__aarch64__)
asm(".text\n"
    ".hidden standin_switch\n"
    ".globl standin_switch\n"
    ".type standin_switch, %function\n"
    "standin_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n    stp x21, x22, [sp, #16]\n"
    "    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
    "    mov x2, sp\n"
    "    str x2, [x0]\n"
    "    ldr x2, [x1]\n"
    "    mov sp, x2\n"
    "    ldp x19, x20, [sp, #0]\n    ldp x21, x22, [sp, #16]\n"
    "    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n"
    ".size standin_switch, .-standin_switch\n");
#endif

static void begin()
{
    fiber *f = here.runs;
#ifdef STANDIN_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &here.stack, &here.stack_bytes);
#endif
    f->main();
    __builtin_trap(); // it never returns
}

// Makes the first switch to the fiber call begin().
static void prepare(fiber *f)
{
#if defined(__x86_64__)
    void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES) - 8;
    std::memset(top, 0, 8 * sizeof *top);
    top[6] = reinterpret_cast<void *>(&begin); // above it: where begin returns
    f->at = top;
#elif defined(__aarch64__)
    char *top = f->stack + STACK_BYTES - 160;
    void *entry = reinterpret_cast<void *>(&begin);
    std::memset(top, 0, 160);
    std::memcpy(top + 88, &entry, sizeof entry);
    f->at = top;
#else
    getcontext(&f->at);
    f->at.uc_stack.ss_sp = f->stack;
    f->at.uc_stack.ss_size = STACK_BYTES;
    f->at.uc_link = nullptr;
    makecontext(&f->at, begin, 0);
#endif
}

// ---- fibers ----------------------------------------------------------------

fiber *fiber_take(void (*main)())
{
    std::size_t page = page_bytes();
    fiber *f;
    void *at;
    if (!here.pool.empty()) {
        f = here.pool.back();
        here.pool.pop_back();
        return f;
    }
    at = mmap(nullptr, STACK_BYTES + page, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        standin_die("no memory for the stack of a thread of a block");
    f = new fiber;
    f->memory = static_cast<char *>(at);
    f->stack = f->memory + page;
    f->main = main;
    if (mprotect(f->stack, STACK_BYTES, PROT_READ | PROT_WRITE))
        standin_die("no memory for the stack of a thread of a block");
    prepare(f);
    here.all.push_back(f);
    return f;
}

void fiber_enter(fiber *f)
{
    here.runs = f;
#ifdef STANDIN_ASAN
    __sanitizer_start_switch_fiber(&here.fake, f->stack, STACK_BYTES);
#endif
    standin_switch(&here.at, &f->at);
#ifdef STANDIN_ASAN
    __sanitizer_finish_switch_fiber(here.fake, nullptr, nullptr);
#endif
    here.runs = nullptr;
}

void fiber_leave()
{
    fiber *f = here.runs;
#ifdef STANDIN_ASAN
    __sanitizer_start_switch_fiber(&f->fake, here.stack, here.stack_bytes);
#endif
    standin_switch(&f->at, &here.at);
#ifdef STANDIN_ASAN
    __sanitizer_finish_switch_fiber(f->fake, nullptr, nullptr);
#endif
}

fiber *fiber_self()
{
    return here.runs;
}

void fiber_give()
{
    here.pool.push_back(here.runs);
    fiber_leave();
}

} // namespace standin
