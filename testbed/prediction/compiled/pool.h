/* Memory: growing pools of elements by number, and an arena of zeroed blocks of fixed size. */

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define POOL(Kind)                                                                                                     \
    struct {                                                                                                           \
        Kind *all;                                                                                                     \
        int32_t many, room;                                                                                            \
    }

/* Returns the next element's number; may move the pool, so pointers into it become invalid. */
#define TAKE(pool)                                                                                                     \
    ((pool).many == (pool).room ? (pool).all = grow((pool).all, sizeof *(pool).all, &(pool).room), (pool).many++      \
                                : (pool).many++)

static inline void *checked(void *memory) {
    if (!memory) {
        fputs("no memory left to play a step\n", stderr);
        abort();
    }
    return memory;
}

static inline void *grow(void *all, size_t size_bytes, int32_t *room) {
    *room = *room ? 2 * *room : 256;
    return checked(realloc(all, (size_t)*room * size_bytes));
}

typedef struct Block {
    struct Block *before;
} Block;

typedef struct {
    Block *last;
    char *free;
    size_t left_bytes;
} Arena;

static inline void *arena_take(Arena *arena, size_t size_bytes) {
    enum { USUAL = 1 << 16 };
    size_bytes = (size_bytes + 15) & ~(size_t)15;
    if (size_bytes > arena->left_bytes) {
        size_t room = size_bytes > USUAL ? size_bytes : USUAL;
        Block *made = checked(calloc(1, sizeof(Block) + 16 + room));
        made->before = arena->last;
        arena->last = made;
        arena->free = (char *)made + 16;
        arena->left_bytes = room;
    }
    void *found = arena->free;
    arena->free += size_bytes;
    arena->left_bytes -= size_bytes;
    return found;
}

static inline void arena_free(Arena *arena) {
    for (Block *own = arena->last, *before; own; own = before) {
        before = own->before;
        free(own);
    }
}
