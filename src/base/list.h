/* SPDX-License-Identifier: Apache-2.0 */
/* base/list.h: a doubly linked list whose links lie in its elements. A list of
 * zeros is empty. It owns nothing, and no function here can fail. */
#ifndef OARI_BASE_LIST_H
#define OARI_BASE_LIST_H

#include <stddef.h>

typedef struct oari_link {
    struct oari_link *prev, *next;
} oari_link;

typedef struct oari_list {
    oari_link *first, *last;
} oari_list;

/* Returns the struct of this type that has the link as this member; NULL for
 * NULL. */
#define OARI_CONTAINER_OF(link, type, member) \
    ((type *)oari_list_container((link), offsetof(type, member)))
static inline void *oari_list_container(oari_link *link, size_t offset)
{
    return link != NULL ? (char *)link - offset : NULL;
}

/* Adds a link at the end. */
static inline void oari_list_append(oari_list *list, oari_link *link)
{
    link->prev = list->last;
    link->next = NULL;
    if (list->last != NULL)
        list->last->next = link;
    else
        list->first = link;
    list->last = link;
}

/* Removes a link that is in the list. */
static inline void oari_list_remove(oari_list *list, oari_link *link)
{
    if (link->prev != NULL)
        link->prev->next = link->next;
    else
        list->first = link->next;
    if (link->next != NULL)
        link->next->prev = link->prev;
    else
        list->last = link->prev;
    link->prev = link->next = NULL;
}

/* Removes the first link and returns it; NULL: the list is empty. */
static inline oari_link *oari_list_take(oari_list *list)
{
    oari_link *first = list->first;

    if (first != NULL)
        oari_list_remove(list, first);
    return first;
}

#endif
