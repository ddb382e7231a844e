/* SPDX-License-Identifier: Apache-2.0 */
/* standin/fiber.h: threads of a block as fibers: stacks that one thread of the
 * operating system runs in turns. A fiber belongs to the thread that made it.
 */
#ifndef TESTS_STANDIN_FIBER_H
#define TESTS_STANDIN_FIBER_H

namespace standin
{

struct fiber;

/* Gives a fiber that will run main(), which must never return; one from the
 * pool of this thread first, which goes on where it was put there. */
fiber *fiber_take(void (*main)());

/* Runs a fiber until it calls fiber_leave. Not called by fibers. */
void fiber_enter(fiber *f);

/* Goes back to fiber_enter; returns when the fiber is entered again. */
void fiber_leave();

/* The fiber that runs. */
fiber *fiber_self();

/* Whether this is on the stack of a fiber of this thread. */
bool fiber_has(const void *memory);

/* Puts the fiber that runs into the pool, and leaves it. */
void fiber_give();

} // namespace standin

#endif
