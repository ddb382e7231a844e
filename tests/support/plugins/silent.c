/* SPDX-License-Identifier: Apache-2.0 */
/* A shared object that is no backend: it exports nothing. */
typedef int silent;
