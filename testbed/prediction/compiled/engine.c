/* Simulation of a step, where nothing is lost, striped, requested or decided at run time.

   `testbed.prediction.simulation` handles everything else, on the same flows, and explains the names. */

#include "engine.h"

#include "collectives.h"
#include "messages.h"

static const double SOON_S = 1e-9;

/* Handles a message that has left a connection. */
static void message_left(Play *play, int32_t which, int32_t number) {
    const Step *step = play->step;
    if (which == FLOW) {
        call_later(play, step->class_rest_s[play->instances[number].class], FLOW_DONE, number, 0);
        return;
    }
    Message *message = &play->messages.all[number];
    if (which == WHOLE) {
        on_sent(play, number, message->rest_s + fmax(0.0, message->until_s - play->now_s));
        return;
    }
    if (which == FIRST || which == ONLY) {
        int32_t own = step->leg_first[step->transfer_lane[message->transfer]] + message->turned++;
        call_later(play, step->leg_delay_s[own], HOP, number, message->turned);
    }
    if (which == THROUGH || which == ONLY) hop_done(play, number);
}

/* ---- operations */

static void start_operation(Play *play, int32_t rank, int32_t index) {
    const Step *step = play->step;
    int32_t kind = step->kind_first[step->rank_kind[rank]], first = step->rank_first[rank];
    int32_t what = step->what[first + index], many = 0;
    double at_s;
    switch (step->operation[kind + index]) {
    case TIMED:
        at_s = play->now_s + step->duration_s[kind + index];
        for (int32_t after; (after = step->following[kind + index]) >= 0; index = after, many++) {
            play->ended_s[first + index] = play->begun_s[first + after] = at_s;
            at_s += step->duration_s[kind + after];
        }
        call_at(play, at_s, FINISHED, rank, index, many);
        break;
    case SENDS:
        send_message(play, step->message_box[what], step->message_transfer[what], step->holds, rank, index);
        break;
    case RECEIVES: {
        int32_t number = post_receive(play, what);
        Receive *receive = &play->receives.all[number];
        if (receive->done) {
            finish(play, rank, index);
        } else {
            receive->who = rank;
            receive->index = index;
        }
        break;
    }
    default: start_collective(play, rank, index, what);
    }
}

static void start_ready(Play *play, int32_t rank) {
    Tracker *tracker = &play->trackers[rank];
    while (tracker->first < tracker->many && !play->status) {
        int32_t index = tracker->ready[tracker->first++];
        play->begun_s[play->step->rank_first[rank] + index] = play->now_s;
        start_operation(play, rank, index);
    }
}

static void finish(Play *play, int32_t rank, int32_t index) {
    const Step *step = play->step;
    Tracker *tracker = &play->trackers[rank];
    int32_t kind = step->kind_first[step->rank_kind[rank]], first = step->rank_first[rank];
    play->ended_s[first + index] = play->now_s;
    tracker->open--;
    for (int32_t own = step->next_first[kind + index]; own < step->next_first[kind + index + 1]; own++)
        if (!--play->missing[first + step->next[own]]) tracker->ready[tracker->many++] = step->next[own];
    if (tracker->first < tracker->many) start_ready(play, rank);
}

static void dispatch(Play *play, Event event) {
    const Step *step = play->step;
    Instance *instance;
    switch (event.kind) {
    case FINISHED:
        play->trackers[event.first].open -= event.third;
        finish(play, event.first, event.second);
        break;
    case START_TRANSFER: start_transfer(play, event.first); break;
    case DELIVERED: {
        int32_t transfer = play->messages.all[event.first].transfer;
        int32_t there = step->lane_target[step->transfer_lane[transfer]];
        software_work(play, there, step->transfer_bytes[transfer], ARRIVED, event.first);
        break;
    }
    case ARRIVED: arrive(play, play->messages.all[event.first].box); break;
    case HOP: send_by_hop(play, event.first, event.second); break;
    default:
        instance = &play->instances[event.first];
        for (int32_t own = 0; own < instance->come; own++) finish(play, instance->who[own], instance->index[own]);
    }
}

static void run_until_idle(Play *play) {
    Fluid *fluid = &play->fluid;
    while (!play->status) {
        double now_s = play->now_s;
        while (play->heap.many && play->heap.all[0].at_s <= now_s && !play->status) dispatch(play, pop(play));
        while (play->soon_first < play->soon.many && !play->status) dispatch(play, play->soon.all[play->soon_first++]);
        play->soon_first = play->soon.many = 0;
        if (!fluid->busy.many) {
            if (!play->heap.many) break;
            while (play->heap.many && !play->soon.many && !fluid->busy.many && !play->status) {
                Event first = pop(play);
                play->now_s = first.at_s;
                dispatch(play, first);
            }
            continue;
        }
        double leaves_s = fluid_leaves_s(fluid);
        if (play->heap.many && play->heap.all[0].at_s <= leaves_s) {
            play->now_s = play->heap.all[0].at_s;
            if (leaves_s - play->now_s > SOON_S) continue;
        } else if (leaves_s > now_s) {
            play->now_s = leaves_s;
        }
        int32_t gone = fluid_find_gone(fluid, play->now_s);
        for (int32_t own = 0; own < gone; own++) {
            int64_t tag = fluid_complete(fluid, own);
            message_left(play, (int32_t)(tag % TAGS), (int32_t)(tag / TAGS));
        }
    }
}

/* ---- a whole step */

static void initialise(Play *play) {
    const Step *step = play->step;
    int32_t ranks = step->ranks, operations = step->rank_first[ranks];
    Arena *arena = &play->arena;
    play->busy_until_s = arena_take(arena, (size_t)ranks * sizeof(double));
    play->trackers = arena_take(arena, (size_t)ranks * sizeof(Tracker));
    play->buffers = arena_take(arena, (size_t)step->lanes * sizeof(Buffer));
    play->sending = arena_take(arena, (size_t)step->lanes * sizeof(double));
    play->missing = arena_take(arena, (size_t)operations * sizeof(int32_t));
    play->sequence = arena_take(arena, (size_t)ranks * (size_t)step->groups * sizeof(int32_t));
    play->instances = arena_take(arena, (size_t)step->instances * sizeof(Instance));
    int32_t *ready = arena_take(arena, (size_t)operations * sizeof(int32_t));
    Portion *portions = arena_take(arena, (size_t)step->parts * sizeof(Portion));
    fluid_init(&play->fluid, step->parts, portions, step->capacity, step->queue);
    for (int32_t own = 0; own < step->connections; own++)
        fluid_connect(&play->fluid, step->queue_bytes[own], step->burst_bytes[own],
                      step->path_first[own + 1] - step->path_first[own], step->step_first + step->path_first[own],
                      step->step_part, step->step_load);
    for (int32_t lane = 0; lane < step->lanes; lane++) play->buffers[lane].waiting = -1;
    add_boxes(play, step->boxes);
    for (int32_t rank = 0; rank < ranks; rank++) {
        int32_t kind = step->kind_first[step->rank_kind[rank]], first = step->rank_first[rank];
        Tracker *tracker = &play->trackers[rank];
        tracker->ready = ready + first;
        tracker->open = step->rank_first[rank + 1] - first;
        for (int32_t index = 0; index < tracker->open; index++) {
            play->missing[first + index] = step->missing[kind + index];
            if (!step->missing[kind + index]) tracker->ready[tracker->many++] = index;
        }
    }
}

/* A thread keeps the pools of one call for the next one, unless they have become too large. */
static _Thread_local Play before;
enum { MOST_BYTES = 1 << 24 };

#define POOLS(DO) DO(heap) DO(soon) DO(boxes) DO(messages) DO(receives) DO(parts) DO(channels) DO(strands)
#define LENT(pool)                                                                                                     \
    play.pool.all = before.pool.all;                                                                                   \
    play.pool.room = before.pool.room;
#define KEPT(pool)                                                                                                     \
    if ((size_t)play.pool.room * sizeof *play.pool.all > MOST_BYTES) {                                                 \
        free(play.pool.all);                                                                                           \
        play.pool.all = NULL;                                                                                          \
        play.pool.room = 0;                                                                                            \
    }                                                                                                                  \
    before.pool.all = play.pool.all;                                                                                   \
    before.pool.room = play.pool.room;
#define LENT_FLUID(pool) LENT(fluid.pool)
#define KEPT_FLUID(pool) KEPT(fluid.pool)

int play(const Step *step, double *begun_s, double *ended_s, double *worked_s, double *burst_bytes) {
    Play play = {.step = step, .begun_s = begun_s, .ended_s = ended_s, .worked_s = worked_s};
    POOLS(LENT)
    FLUID_POOLS(LENT_FLUID)
    initialise(&play);
    for (int32_t rank = 0; rank < step->ranks; rank++) start_ready(&play, rank);
    run_until_idle(&play);
    for (int32_t rank = 0; rank < step->ranks && !play.status; rank++)
        if (play.trackers[rank].open) play.status = STUCK;
    *burst_bytes = play.most_bytes;
    POOLS(KEPT)
    FLUID_POOLS(KEPT_FLUID)
    arena_free(&play.arena);
    return play.status;
}
