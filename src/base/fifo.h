/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD2H_BASE_FIFO_H
#define RD2H_BASE_FIFO_H
/* A first-in, first-out list of records that hold the link themselves: nothing is allocated. RD2H_FIFO(name, item, next) makes struct
 * name, which is empty when it is zero, and its functions, for records of type `item` whose link is the member `next`. A record is in
 * one list by one link at a time. */
#include <stdbool.h>
#include <stddef.h>

#define RD2H_FIFO(name, item, next) \
  struct name { \
    item *head, *tail; \
  }; \
  __attribute__((unused)) static inline void name##_push(struct name *l, item *x) { \
    x->next = NULL; \
    if (l->tail) \
      l->tail->next = x; \
    else \
      l->head = x; \
    l->tail = x; \
  } \
  /* The oldest; NULL: there is none. */ \
  __attribute__((unused)) static inline item *name##_pop(struct name *l) { \
    item *x = l->head; \
    if (x && !(l->head = x->next)) \
      l->tail = NULL; \
    return x; \
  } \
  /* All of it: the list is empty then. */ \
  __attribute__((unused)) static inline struct name name##_take(struct name *l) { \
    struct name all = *l; \
    l->head = l->tail = NULL; \
    return all; \
  } \
  /* Looks through the list; false: it is not there. */ \
  __attribute__((unused)) static inline bool name##_remove(struct name *l, const item *gone) { \
    item **at = &l->head, *before = NULL; \
    while (*at && *at != gone) { \
      before = *at; \
      at = &before->next; \
    } \
    if (!*at) \
      return false; \
    *at = gone->next; \
    if (l->tail == gone) \
      l->tail = before; \
    return true; \
  } \
  struct name
#endif
