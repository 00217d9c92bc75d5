/* State of a simulation and its event queue. Names are those of the Python modules. */

#pragma once

#include "engine.h"
#include "fluid.h"
#include "pool.h"

enum { FINISHED, START_TRANSFER, DELIVERED, ARRIVED, HOP, FLOW_DONE }; /* kinds of events */

typedef struct {
    double at_s;
    uint64_t number;
    int32_t kind, first, second, third;
} Event;

typedef struct {
    int32_t come, allowed, waiting, last_waiting, held, last_held; /* heads and tails of lists of receives, messages */
} Box;

/* who: a rank's operation, or a strand if `index` is -1 */
typedef struct {
    int32_t transfer, box, who, index, next, turned, over;
    int64_t turn;
    double until_s, rest_s, put_bytes;
} Message;

typedef struct {
    int32_t done, who, index, next;
} Receive;

typedef struct {
    double put_bytes, left_bytes;
    int32_t waiting, last_waiting;
} Buffer;

typedef struct {
    int32_t rank, index, left;
} Part;

typedef struct {
    int32_t part, stage, end, left, boxes;
} Channel;

typedef struct {
    int32_t channel, round, first, end, missing, sends, ending;
    int32_t *posted;
} Strand;

/* come: members that have joined; who, index: those members' operations, in a folded collective */
typedef struct {
    int32_t class, boxes, come, *who, *index;
} Instance;

typedef struct {
    int32_t *ready, first, many, open;
} Tracker;

typedef struct {
    const Step *step;
    Fluid fluid;
    double now_s, *begun_s, *ended_s, *worked_s, *busy_until_s, most_bytes;
    uint64_t number;
    int64_t turn;
    POOL(Event) heap;
    POOL(Event) soon;
    int32_t soon_first;
    POOL(Box) boxes;
    POOL(Message) messages;
    POOL(Receive) receives;
    POOL(Part) parts;
    POOL(Channel) channels;
    POOL(Strand) strands;
    Tracker *trackers;
    Buffer *buffers;
    double *sending;
    int32_t *missing, *sequence;
    Instance *instances;
    Arena arena;
    int status;
} Play;

/* an operation ends; all receives, or sends, of a strand's round are complete; a stage of a channel is complete */
static void finish(Play *play, int32_t rank, int32_t index);
static void advance_strand(Play *play, int32_t number);
static void advance_channel(Play *play, int32_t number);

static int sooner(const Event *one, const Event *other) {
    return one->at_s < other->at_s || (one->at_s == other->at_s && one->number < other->number);
}

static void push(Play *play, Event event) {
    int32_t place = TAKE(play->heap);
    Event *all = play->heap.all;
    while (place && sooner(&event, &all[(place - 1) / 2])) {
        all[place] = all[(place - 1) / 2];
        place = (place - 1) / 2;
    }
    all[place] = event;
}

static Event pop(Play *play) {
    Event *all = play->heap.all, first = all[0], last = all[--play->heap.many];
    int32_t many = play->heap.many, place = 0, child;
    while ((child = 2 * place + 1) < many) {
        child += child + 1 < many && sooner(&all[child + 1], &all[child]);
        if (!sooner(&all[child], &last)) break;
        all[place] = all[child];
        place = child;
    }
    all[place] = last;
    return first;
}

static void call_at(Play *play, double at_s, int32_t kind, int32_t first, int32_t second, int32_t third) {
    Event event = {at_s, 0, kind, first, second, third};
    if (at_s > play->now_s) {
        event.number = play->number++;
        push(play, event);
    } else {
        int32_t last = TAKE(play->soon);
        play->soon.all[last] = event;
    }
}

static void call_later(Play *play, double seconds, int32_t kind, int32_t first, int32_t second) {
    call_at(play, play->now_s + seconds, kind, first, second, 0);
}

/* Adds mailboxes and returns the number of the first one. */
static int32_t add_boxes(Play *play, int32_t many) {
    int32_t first = play->boxes.many;
    for (int32_t own = 0; own < many; own++) {
        int32_t made = TAKE(play->boxes);
        play->boxes.all[made] = (Box){0, 0, -1, -1, -1, -1};
    }
    return first;
}

/* Handles a message in a rank's software, one after the other. */
static void software_work(Play *play, int32_t rank, double size_bytes, int32_t kind, int32_t message) {
    const Step *step = play->step;
    double until_s = play->busy_until_s[rank], cost_s = size_bytes * step->byte_s + step->message_s;
    play->worked_s[rank] += cost_s;
    until_s = (until_s > play->now_s ? until_s : play->now_s) + cost_s;
    play->busy_until_s[rank] = until_s;
    call_later(play, until_s + step->handover_s - play->now_s, kind, message, 0);
}

