/* Flows: connections share each part max-min fairly, or by turn. See ../fluid.py. */

#include "engine.h"
#include "pool.h"

#include <math.h>
#include <string.h>

static const double INSTANT_S = 1e-12, ALIKE = 1e-9;
enum { MOST_ULPS = 4 };
enum { WHOLE, FIRST, ONLY, THROUGH, FLOW }; /* which part of a message has left */

typedef struct {
    double size_bytes;
    int64_t turn; /* -1: none */
    int32_t which, number, next;
} Queued;

/* since_s: when `left` was last updated. leaves_s: when the next message will have left, if known. busy_place: -1 if
   the connection is idle. crossing: per part, the busy connections through it. */
typedef struct {
    const Step *step;
    POOL(Queued) queued;
    int32_t unused;
    double *left, *rate, *room, *share_left, *share_load, since_s, leaves_s;
    int64_t *turn;
    int32_t *first, *last, *busy, *busy_place, busy_many;
    int32_t *crossing_first, *crossing, *crossing_many;
    int32_t *order, *gone, *growing, *touched, *mark;
    double *path_rate;
    int shared, known;
} Fluid;

static void fluid_init(Fluid *fluid, const Step *step, Arena *arena) {
    size_t many = (size_t)step->connections, parts = (size_t)step->parts;
    size_t paths = (size_t)step->path_first[many], words = sizeof(int32_t);
    fluid->step = step;
    fluid->unused = -1;
    double **figures[] = {&fluid->left, &fluid->rate};
    for (size_t own = 0; own < 2; own++) *figures[own] = arena_take(arena, many * sizeof(double));
    double **of_parts[] = {&fluid->room, &fluid->share_left, &fluid->share_load};
    for (size_t own = 0; own < 3; own++) *of_parts[own] = arena_take(arena, parts * sizeof(double));
    fluid->path_rate = arena_take(arena, paths * sizeof(double));
    fluid->turn = arena_take(arena, many * sizeof(int64_t));
    int32_t **numbers[] = {&fluid->first, &fluid->last, &fluid->busy, &fluid->busy_place, &fluid->order, &fluid->gone};
    for (size_t own = 0; own < 6; own++) *numbers[own] = arena_take(arena, many * words);
    fluid->growing = arena_take(arena, paths * words);
    fluid->touched = arena_take(arena, parts * words);
    fluid->mark = arena_take(arena, parts * words);
    fluid->crossing_many = arena_take(arena, parts * words);
    fluid->crossing_first = arena_take(arena, (parts + 1) * words);
    fluid->crossing = arena_take(arena, (size_t)step->through_first[many] * words);
    for (int32_t own = 0; own < step->through_first[many]; own++) fluid->crossing_first[step->through_part[own] + 1]++;
    for (size_t part = 0; part < parts; part++) fluid->crossing_first[part + 1] += fluid->crossing_first[part];
    for (size_t own = 0; own < many; own++) {
        fluid->first[own] = fluid->busy_place[own] = -1;
        fluid->turn[own] = -1;
    }
}

/* Max-min fair rates of the paths in `growing`: all grow evenly until a part is full, then those through it stop. */
static void fair(Fluid *fluid, int32_t many) {
    const Step *step = fluid->step;
    int32_t touched_many = 0, *growing = fluid->growing, *touched = fluid->touched;
    for (int32_t own = 0; own < many; own++)
        for (int32_t at = step->step_first[growing[own]]; at < step->step_first[growing[own] + 1]; at++) {
            int32_t part = step->step_part[at];
            if (fluid->mark[part]) continue;
            fluid->mark[part] = 1;
            touched[touched_many++] = part;
            fluid->share_left[part] = fmax(fluid->room[part], ALIKE * step->capacity[part]);
        }
    while (many) {
        double rate = INFINITY;
        for (int32_t own = 0; own < touched_many; own++) fluid->share_load[touched[own]] = 0.0;
        for (int32_t own = 0; own < many; own++)
            for (int32_t at = step->step_first[growing[own]]; at < step->step_first[growing[own] + 1]; at++)
                fluid->share_load[step->step_part[at]] += step->step_load[at];
        for (int32_t own = 0; own < touched_many; own++) {
            int32_t part = touched[own];
            if (fluid->share_load[part] > 0.0) rate = fmin(rate, fluid->share_left[part] / fluid->share_load[part]);
        }
        double most = rate * (1 + ALIKE);
        int32_t still = 0;
        for (int32_t own = 0; own < touched_many; own++) {
            int32_t part = touched[own];
            double load = fluid->share_load[part];
            fluid->mark[part] = load > 0.0 && fluid->share_left[part] / load <= most ? 2 : 1;
        }
        for (int32_t own = 0; own < many; own++) {
            int32_t path = growing[own], full = 0;
            for (int32_t at = step->step_first[path]; at < step->step_first[path + 1]; at++)
                full |= fluid->mark[step->step_part[at]] == 2;
            if (!full) {
                growing[still++] = path;
                continue;
            }
            fluid->path_rate[path] = rate;
            for (int32_t at = step->step_first[path]; at < step->step_first[path + 1]; at++)
                fluid->share_left[step->step_part[at]] -= rate * step->step_load[at];
        }
        many = still;
    }
    for (int32_t own = 0; own < touched_many; own++) fluid->mark[touched[own]] = 0;
}

/* The same for a single path. */
static double alone(const Fluid *fluid, int32_t path) {
    const Step *step = fluid->step;
    double rate = INFINITY;
    for (int32_t at = step->step_first[path]; at < step->step_first[path + 1]; at++) {
        int32_t part = step->step_part[at];
        double load = step->step_load[at], left = fluid->room[part], least = ALIKE * step->capacity[part];
        double share = (left > least ? left : least) / load;
        if (load > 0.0 && share < rate) rate = share;
    }
    return rate;
}

/* Allocates rates: earlier turns take all they can use; connections without a turn are last and share. */
static void fluid_allocate(Fluid *fluid) {
    const Step *step = fluid->step;
    int32_t turns = 0, *order = fluid->order;
    for (int32_t place = 0; place < fluid->busy_many; place++) {
        int32_t own = fluid->busy[place], at = turns;
        fluid->rate[own] = 0.0;
        for (int32_t through = step->through_first[own]; through < step->through_first[own + 1]; through++) {
            int32_t part = step->through_part[through];
            fluid->room[part] = step->capacity[part];
        }
        if (fluid->turn[own] < 0) continue;
        for (; at && fluid->turn[order[at - 1]] > fluid->turn[own]; at--) order[at] = order[at - 1];
        order[at] = own;
        turns++;
    }
    int32_t all = turns;
    for (int32_t place = 0; place < fluid->busy_many; place++)
        if (fluid->turn[fluid->busy[place]] < 0) order[all++] = fluid->busy[place];
    for (int32_t first = 0, end; first < all; first = end) {
        int32_t many = 0;
        for (end = first; end < all && fluid->turn[order[end]] == fluid->turn[order[first]]; end++)
            for (int32_t path = step->path_first[order[end]]; path < step->path_first[order[end] + 1]; path++)
                fluid->growing[many++] = path;
        if (many == 1) fluid->path_rate[fluid->growing[0]] = alone(fluid, fluid->growing[0]);
        else fair(fluid, many);
        for (int32_t own = first; own < end; own++)
            for (int32_t path = step->path_first[order[own]]; path < step->path_first[order[own] + 1]; path++) {
                double rate = fluid->path_rate[path];
                fluid->rate[order[own]] += rate;
                for (int32_t at = step->step_first[path]; at < step->step_first[path + 1]; at++)
                    fluid->room[step->step_part[at]] -= step->step_load[at] * rate;
            }
    }
    fluid->shared = 1;
}

static void fluid_update(Fluid *fluid, double now_s) {
    double passed_s = now_s - fluid->since_s;
    if (passed_s != 0.0 && fluid->busy_many) {
        if (!fluid->shared) fluid_allocate(fluid);
        for (int32_t place = 0; place < fluid->busy_many; place++) {
            int32_t own = fluid->busy[place];
            fluid->left[own] -= fluid->rate[own] * passed_s;
        }
    }
    fluid->since_s = now_s;
}

/* Starts a connection's next message. */
static void fluid_start_next(Fluid *fluid, int32_t connection) {
    Queued *queued = &fluid->queued.all[fluid->first[connection]];
    fluid->left[connection] = queued->size_bytes;
    fluid->known = 0;
    if (fluid->turn[connection] != queued->turn) fluid->shared = 0;
    fluid->turn[connection] = queued->turn;
}

static void fluid_send(Fluid *fluid, int32_t connection, double size_bytes, int64_t turn, int32_t which, int32_t number,
                       double now_s) {
    const Step *step = fluid->step;
    int32_t place = fluid->unused;
    if (place < 0) place = TAKE(fluid->queued);
    else fluid->unused = fluid->queued.all[place].next;
    if (size_bytes > step->queue_bytes[connection]) turn = -1;
    fluid->queued.all[place] = (Queued){size_bytes, turn, which, number, -1};
    if (fluid->first[connection] >= 0) {
        fluid->queued.all[fluid->last[connection]].next = place;
        fluid->last[connection] = place;
        return;
    }
    fluid->first[connection] = fluid->last[connection] = place;
    fluid_update(fluid, now_s);
    fluid->busy_place[connection] = fluid->busy_many;
    fluid->busy[fluid->busy_many++] = connection;
    for (int32_t own = step->through_first[connection]; own < step->through_first[connection + 1]; own++) {
        int32_t part = step->through_part[own];
        fluid->crossing[fluid->crossing_first[part] + fluid->crossing_many[part]++] = own;
    }
    fluid->shared = 0;
    fluid_start_next(fluid, connection);
}

static void fluid_set_idle(Fluid *fluid, int32_t connection) {
    const Step *step = fluid->step;
    int32_t first = step->through_first[connection], end = step->through_first[connection + 1];
    for (int32_t place = fluid->busy_place[connection] + 1; place < fluid->busy_many; place++) {
        int32_t other = fluid->busy[place];
        fluid->busy[place - 1] = other;
        fluid->busy_place[other] = place - 1;
    }
    fluid->busy_many--;
    fluid->busy_place[connection] = -1;
    fluid->turn[connection] = -1;
    for (int32_t own = first; own < end; own++) {
        int32_t part = step->through_part[own], *all = fluid->crossing + fluid->crossing_first[part], place = 0;
        while (all[place] != own) place++;
        int32_t behind = --fluid->crossing_many[part] - place;
        memmove(all + place, all + place + 1, (size_t)behind * sizeof *all);
    }
    fluid->shared = fluid->known = 0;
}

static double fluid_leaves_s(Fluid *fluid) {
    if (fluid->known) return fluid->leaves_s;
    double soonest_s = INFINITY;
    if (!fluid->shared) fluid_allocate(fluid);
    for (int32_t place = 0; place < fluid->busy_many; place++) {
        int32_t own = fluid->busy[place];
        double after_s = fluid->left[own] / fluid->rate[own];
        if (after_s < soonest_s) soonest_s = after_s;
    }
    fluid->known = 1;
    return fluid->leaves_s = fluid->since_s + soonest_s;
}

/* Completes messages that have left. */
static void fluid_leave(Fluid *fluid, double now_s, void (*on_left)(void *, int32_t, int32_t), void *owner) {
    double over_s = fmax(INSTANT_S, MOST_ULPS * (nextafter(now_s, INFINITY) - now_s));
    if (fluid_leaves_s(fluid) - now_s > over_s) return;
    fluid_update(fluid, now_s);
    if (!fluid->shared) fluid_allocate(fluid);
    int32_t many = 0;
    for (int32_t place = 0; place < fluid->busy_many; place++) {
        int32_t own = fluid->busy[place];
        if (fluid->left[own] <= fluid->rate[own] * over_s) fluid->gone[many++] = own;
    }
    for (int32_t own = 0; own < many; own++) {
        int32_t connection = fluid->gone[own], place = fluid->first[connection];
        Queued queued = fluid->queued.all[place];
        fluid->queued.all[place].next = fluid->unused;
        fluid->unused = place;
        fluid->first[connection] = queued.next;
        if (queued.next >= 0) fluid_start_next(fluid, connection);
        else fluid_set_idle(fluid, connection);
        on_left(owner, queued.which, queued.number);
    }
}

/* How long until a message has left if everything in queues now goes before it. */
static double fluid_ahead_s(Fluid *fluid, int32_t connection, double size_bytes, double now_s) {
    const Step *step = fluid->step;
    int32_t first = step->through_first[connection], end = step->through_first[connection + 1];
    int32_t itself = fluid->busy_place[connection] >= 0, others = 0;
    for (int32_t own = first; own < end; own++) {
        int32_t part = step->through_part[own];
        others |= step->queue[part] > 0.0 && fluid->crossing_many[part] > itself;
    }
    if (!others) return 0.0;
    fluid_update(fluid, now_s);
    double latest_s = 0.0, slowest_s = 0.0;
    for (int32_t own = first; own < end; own++)
        slowest_s = fmax(slowest_s, step->through_load[own] * size_bytes / step->capacity[step->through_part[own]]);
    int before = 1;
    for (int32_t own = first; own < end; own++) {
        int32_t part = step->through_part[own];
        double waiting = 0.0, own_s = step->through_load[own] * size_bytes / step->capacity[part];
        before = before && own_s < slowest_s;
        if (step->queue[part] > 0.0) {
            const int32_t *all = fluid->crossing + fluid->crossing_first[part];
            for (int32_t place = 0; place < fluid->crossing_many[part]; place++) {
                int32_t other = step->through_owner[all[place]];
                if (other != connection)
                    waiting += step->through_load[all[place]] * fmin(fluid->left[other], step->burst_bytes[other]);
            }
            waiting = fmin(waiting, step->queue[part]);
        }
        if (waiting != 0.0)
            latest_s = fmax(latest_s, waiting / step->capacity[part] + (before ? slowest_s : own_s));
    }
    return latest_s;
}
