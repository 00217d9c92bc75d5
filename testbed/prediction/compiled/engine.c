/* Simulation of a step, where nothing is lost, striped, requested or decided at run time.

   `testbed.prediction.simulation` is the reference and explains the names. Both do the same in the same order. */

#include "engine.h"

#include "collectives.h"
#include "messages.h"

static const double SOON_S = 1e-9;

/* Handles a message that has left a connection. */
static void left(void *owner, int32_t told, int32_t number) {
    Play *play = owner;
    const Step *step = play->step;
    if (told == FLOW) {
        later(play, step->class_rest_s[play->instances[number].class], REST, number, 0);
        return;
    }
    Message *message = &play->messages.all[number];
    if (told == WHOLE) {
        has_left(play, number, message->rest_s + fmax(0.0, message->until_s - play->now_s));
        return;
    }
    if (told == FIRST || told == ONLY) {
        int32_t own = step->leg_first[step->transfer_lane[message->transfer]] + message->turned++;
        later(play, step->leg_delay_s[own], LEG, number, message->turned);
    }
    if (told == THROUGH || told == ONLY) through(play, number);
}

/* ---- operations */

static void starts(Play *play, int32_t rank, int32_t index) {
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
        at(play, at_s, OVER, rank, index, many);
        break;
    case SENDS:
        sends(play, step->message_box[what], step->message_transfer[what], step->holds, rank, index);
        break;
    case RECEIVES: {
        int32_t number = receives(play, what);
        Receive *receive = &play->receives.all[number];
        if (receive->done) {
            over(play, rank, index);
        } else {
            receive->who = rank;
            receive->index = index;
        }
        break;
    }
    default: collective(play, rank, index, what);
    }
}

static void start_ready(Play *play, int32_t rank) {
    Tracker *tracker = &play->trackers[rank];
    while (tracker->first < tracker->many && !play->status) {
        int32_t index = tracker->ready[tracker->first++];
        play->begun_s[play->step->rank_first[rank] + index] = play->now_s;
        starts(play, rank, index);
    }
}

static void over(Play *play, int32_t rank, int32_t index) {
    const Step *step = play->step;
    Tracker *tracker = &play->trackers[rank];
    int32_t kind = step->kind_first[step->rank_kind[rank]], first = step->rank_first[rank];
    play->ended_s[first + index] = play->now_s;
    tracker->open--;
    for (int32_t own = step->next_first[kind + index]; own < step->next_first[kind + index + 1]; own++)
        if (!--play->missing[first + step->next[own]]) tracker->ready[tracker->many++] = step->next[own];
    if (tracker->first < tracker->many) start_ready(play, rank);
}

static void happens(Play *play, Happening what) {
    const Step *step = play->step;
    Instance *instance;
    switch (what.kind) {
    case OVER:
        play->trackers[what.first].open -= what.third;
        over(play, what.first, what.second);
        break;
    case BEGIN: begins(play, what.first); break;
    case COME: {
        int32_t transfer = play->messages.all[what.first].transfer;
        int32_t there = step->lane_target[step->transfer_lane[transfer]];
        work(play, there, step->transfer_bytes[transfer], ARRIVED, what.first);
        break;
    }
    case ARRIVED: arrive(play, play->messages.all[what.first].box); break;
    case LEG: hops(play, what.first, what.second); break;
    default:
        instance = &play->instances[what.first];
        for (int32_t own = 0; own < instance->come; own++) over(play, instance->who[own], instance->index[own]);
    }
}

static void pass_time(Play *play) {
    Fluid *fluid = &play->fluid;
    while (!play->status) {
        double now_s = play->now_s;
        while (play->agenda.many && play->agenda.all[0].at_s <= now_s && !play->status) happens(play, pop(play));
        while (play->soon_first < play->soon.many && !play->status) happens(play, play->soon.all[play->soon_first++]);
        play->soon_first = play->soon.many = 0;
        if (!fluid->busy_many) {
            if (!play->agenda.many) break;
            while (play->agenda.many && !play->soon.many && !fluid->busy_many && !play->status) {
                Happening first = pop(play);
                play->now_s = first.at_s;
                happens(play, first);
            }
            continue;
        }
        double leaves_s = fluid_leaves_s(fluid);
        if (play->agenda.many && play->agenda.all[0].at_s <= leaves_s) {
            play->now_s = play->agenda.all[0].at_s;
            if (leaves_s - play->now_s > SOON_S) continue;
        } else if (leaves_s > now_s) {
            play->now_s = leaves_s;
        }
        fluid_leave(fluid, play->now_s, left, play);
    }
}

/* ---- a whole step */

static void sets_out(Play *play) {
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
    fluid_opens(&play->fluid, step, arena);
    for (int32_t lane = 0; lane < step->lanes; lane++) play->buffers[lane].waiting = -1;
    boxes_made(play, step->boxes);
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

#define POOLS(DO)                                                                                                      \
    DO(agenda) DO(soon) DO(boxes) DO(messages) DO(receives) DO(parts) DO(channels) DO(strands) DO(fluid.queued)
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

int play(const Step *step, double *begun_s, double *ended_s, double *worked_s, double *burst_bytes) {
    Play play = {.step = step, .begun_s = begun_s, .ended_s = ended_s, .worked_s = worked_s};
    POOLS(LENT)
    sets_out(&play);
    for (int32_t rank = 0; rank < step->ranks; rank++) start_ready(&play, rank);
    pass_time(&play);
    for (int32_t rank = 0; rank < step->ranks && !play.status; rank++)
        if (play.trackers[rank].open) play.status = STUCK;
    *burst_bytes = play.most_bytes;
    POOLS(KEPT)
    arena_frees(&play.arena);
    return play.status;
}
