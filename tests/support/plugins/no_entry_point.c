/* SPDX-License-Identifier: Apache-2.0 */
/* no_entry_point: a shared object that is no backend: it exports nothing. */
typedef int silent;
