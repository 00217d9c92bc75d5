/* Flows: connections share the parts of a network max-min fairly, or by turn. `../fluid.py` explains the model. */

#pragma once

#include "pool.h"

#include <math.h>

static const double INSTANT_S = 1e-12; /* remaining time that counts as none: the clock's precision */
static const double ALIKE = 1e-9;      /* relative difference below which shares of parts are equal */
static const double TRICKLE = 1.0;     /* bytes per second of flows that have to wait for all others */
enum { MOST_ULPS = 4 };                /* the clock's precision late in a simulation */

/* The load that a byte of a path puts on a part. */
typedef struct {
    int32_t part;
    double load;
} Use;

typedef struct {
    int32_t first_use, end_use;
    double rate;
} Path;

/* A connection's load on a part, by all of its paths. before, after: neighbours among the part's busy connections. */
typedef struct {
    int32_t part, connection, before, after;
    double load;
} Through;

/* limit: capacity, or of a class its share of it now. room: not allocated yet. left, load, mark: used by `fair`.
   first, last, many: busy connections through the part. */
typedef struct {
    double capacity, queue, limit, room, left, load;
    int32_t first, last, many, mark;
} Portion;

/* turn: -1 for none */
typedef struct {
    double size_bytes;
    int64_t turn, tag;
    int32_t next;
} Queued;

/* place: among busy connections, -1 if idle. first, last: its messages. left_bytes, turn: of the first one. */
typedef struct {
    int32_t first_path, end_path, first_through, end_through, place, first, last;
    double queue_bytes, burst_bytes, left_bytes, rate;
    int64_t turn;
} Connection;

/* Traffic classes' guaranteed shares of links, and the most that they may use. part: models the class's queue. */
typedef struct {
    int32_t many;
    const int32_t *link, *part;
    const double *share, *limit;
} Classes;

/* classes: by link, then by priority. since_s: when `left_bytes` was last updated. leaves_s: when the next message will have left, if `known`. */
typedef struct {
    int32_t parts, unused;
    Portion *part;
    Classes classes;
    POOL(Connection) connections;
    POOL(Path) paths;
    POOL(Use) uses;
    POOL(Through) throughs;
    POOL(Queued) queued;
    POOL(int32_t) busy;
    POOL(int32_t) order;
    POOL(int32_t) gone;
    POOL(int32_t) growing;
    POOL(int32_t) touched;
    double since_s, leaves_s;
    int allocated, known;
} Fluid;

#define FLUID_POOLS(DO)                                                                                                \
    DO(connections) DO(paths) DO(uses) DO(throughs) DO(queued) DO(busy) DO(order) DO(gone) DO(growing) DO(touched)

/* Each element of a connection's range in a pool. */
#define EACH(name, pool, connection) \
    for (int32_t name = (connection)->first_##pool; name < (connection)->end_##pool; name++)

/* Initialises an idle network. portions: memory for its parts, zeroed. */
static void fluid_init(Fluid *fluid, int32_t parts, Portion *portions, const double *capacity, const double *queue) {
    fluid->parts = parts;
    fluid->part = portions;
    fluid->unused = -1;
    for (int32_t part = 0; part < parts; part++)
        portions[part] = (Portion){
            .capacity = capacity[part], .limit = capacity[part], .queue = queue[part], .first = -1, .last = -1};
}

/* Adds a connection over parallel paths and returns its number. queue_bytes: how much of a message its queues hold.
   burst_bytes: how much of one is in flight at once. first: per path, its first element of `part` and `load`. */
int32_t fluid_connect(Fluid *fluid, double queue_bytes, double burst_bytes, int32_t paths, const int32_t *first,
                      const int32_t *part, const double *load) {
    Connection made = {.place = -1, .first = -1, .turn = -1, .queue_bytes = queue_bytes, .burst_bytes = burst_bytes};
    int32_t number = TAKE(fluid->connections);
    made.first_path = fluid->paths.many;
    made.first_through = fluid->throughs.many;
    for (int32_t path = 0; path < paths; path++) {
        int32_t first_use = fluid->uses.many;
        for (int32_t at = first[path]; at < first[path + 1]; at++) {
            int32_t use = TAKE(fluid->uses), *mark = &fluid->part[part[at]].mark;
            fluid->uses.all[use] = (Use){part[at], load[at]};
            if (!*mark) {
                int32_t through = TAKE(fluid->throughs);
                fluid->throughs.all[through] = (Through){.part = part[at], .connection = number};
                *mark = through + 1;
            }
            fluid->throughs.all[*mark - 1].load += load[at] / paths;
        }
        int32_t added = TAKE(fluid->paths);
        fluid->paths.all[added] = (Path){first_use, fluid->uses.many, 0.0};
    }
    made.end_path = fluid->paths.many;
    made.end_through = fluid->throughs.many;
    EACH(through, through, &made) fluid->part[fluid->throughs.all[through].part].mark = 0;
    fluid->connections.all[number] = made;
    return number;
}

static void grow_path(Fluid *fluid, int32_t path) {
    int32_t place = TAKE(fluid->growing);
    fluid->growing.all[place] = path;
}

/* Max-min fair rates of the paths in `growing`: all grow evenly until a part is full, then those through it stop. */
static void fair(Fluid *fluid) {
    Portion *parts = fluid->part;
    const Use *uses = fluid->uses.all;
    int32_t *growing = fluid->growing.all, many = fluid->growing.many;
    fluid->touched.many = fluid->growing.many = 0;
    for (int32_t own = 0; own < many; own++) {
        const Path *path = &fluid->paths.all[growing[own]];
        for (int32_t at = path->first_use; at < path->end_use; at++) {
            Portion *part = &parts[uses[at].part];
            if (part->mark) continue;
            part->mark = 1;
            part->left = fmax(part->room, ALIKE * part->limit); /* so that even the last ones complete */
            int32_t place = TAKE(fluid->touched);
            fluid->touched.all[place] = uses[at].part;
        }
    }
    const int32_t *touched = fluid->touched.all, touched_many = fluid->touched.many;
    while (many) {
        double rate = INFINITY;
        for (int32_t own = 0; own < touched_many; own++) parts[touched[own]].load = 0.0;
        for (int32_t own = 0; own < many; own++) {
            const Path *path = &fluid->paths.all[growing[own]];
            for (int32_t at = path->first_use; at < path->end_use; at++) parts[uses[at].part].load += uses[at].load;
        }
        for (int32_t own = 0; own < touched_many; own++) {
            const Portion *part = &parts[touched[own]];
            if (part->load > 0.0) rate = fmin(rate, part->left / part->load);
        }
        double most = rate * (1 + ALIKE);
        for (int32_t own = 0; own < touched_many; own++) {
            Portion *part = &parts[touched[own]];
            part->mark = part->load > 0.0 && part->left / part->load <= most ? 2 : 1;
        }
        int32_t still = 0;
        for (int32_t own = 0; own < many; own++) {
            Path *path = &fluid->paths.all[growing[own]];
            int full = 0;
            for (int32_t at = path->first_use; at < path->end_use; at++) full |= parts[uses[at].part].mark == 2;
            if (!full) {
                growing[still++] = growing[own];
                continue;
            }
            path->rate = rate;
            for (int32_t at = path->first_use; at < path->end_use; at++)
                parts[uses[at].part].left -= rate * uses[at].load;
        }
        many = still;
    }
    for (int32_t own = 0; own < touched_many; own++) parts[touched[own]].mark = 0;
}

/* Gives each class what it can use of its guarantee, then of the rest by priority. */
static void share_classes(Fluid *fluid) {
    Portion *parts = fluid->part;
    const Classes *classes = &fluid->classes;
    for (int32_t part = 0; part < fluid->parts; part++) parts[part].room = parts[part].limit = parts[part].capacity;
    for (int32_t own = 0; own < classes->many; own++) {
        parts[classes->link[own]].room = INFINITY;
        parts[classes->part[own]].room = parts[classes->link[own]].capacity * classes->limit[own];
    }
    for (int32_t place = 0; place < fluid->busy.many; place++)
        EACH(path, path, &fluid->connections.all[fluid->busy.all[place]]) grow_path(fluid, path);
    fair(fluid);
    for (int32_t own = 0; own < classes->many; own++) parts[classes->part[own]].left = 0.0;
    for (int32_t place = 0; place < fluid->busy.many; place++)
        EACH(path, path, &fluid->connections.all[fluid->busy.all[place]]) {
            const Path *own = &fluid->paths.all[path];
            for (int32_t at = own->first_use; at < own->end_use; at++)
                parts[fluid->uses.all[at].part].left += fluid->uses.all[at].load * own->rate;
        }
    for (int32_t first = 0, end; first < classes->many; first = end) {
        int32_t link = classes->link[first];
        double given = 0.0;
        for (end = first; end < classes->many && classes->link[end] == link; end++) {
            Portion *part = &parts[classes->part[end]];
            part->limit = fmin(part->left, classes->share[end] * parts[link].capacity);
            given += part->limit;
        }
        double rest = parts[link].capacity - given;
        for (int32_t own = first; own < end; own++) {
            Portion *part = &parts[classes->part[own]];
            double more = fmin(rest, part->left - part->limit);
            part->limit += more;
            rest -= more;
            if (part->limit <= 0.0) part->limit = TRICKLE;
        }
    }
}

/* Allocates rates: earlier turns take all they can use, equal ones share, connections without a turn are last. */
static void fluid_allocate(Fluid *fluid) {
    if (fluid->allocated) return;
    if (fluid->classes.many) share_classes(fluid);
    fluid->order.many = 0;
    for (int32_t place = 0; place < fluid->busy.many; place++) {
        int32_t own = fluid->busy.all[place];
        Connection *connection = &fluid->connections.all[own];
        connection->rate = 0.0;
        EACH(through, through, connection) {
            Portion *part = &fluid->part[fluid->throughs.all[through].part];
            part->room = part->limit;
        }
        if (connection->turn < 0) continue;
        int32_t at = TAKE(fluid->order), *order = fluid->order.all;
        for (; at && fluid->connections.all[order[at - 1]].turn > connection->turn; at--) order[at] = order[at - 1];
        order[at] = own;
    }
    for (int32_t place = 0; place < fluid->busy.many; place++) {
        if (fluid->connections.all[fluid->busy.all[place]].turn >= 0) continue;
        int32_t last = TAKE(fluid->order);
        fluid->order.all[last] = fluid->busy.all[place];
    }
    for (int32_t first = 0, end; first < fluid->order.many; first = end) {
        int64_t turn = fluid->connections.all[fluid->order.all[first]].turn;
        for (end = first; end < fluid->order.many; end++) {
            const Connection *connection = &fluid->connections.all[fluid->order.all[end]];
            if (connection->turn != turn) break;
            EACH(path, path, connection) grow_path(fluid, path);
        }
        fair(fluid);
        for (int32_t own = first; own < end; own++) {
            Connection *connection = &fluid->connections.all[fluid->order.all[own]];
            EACH(path, path, connection) {
                const Path *taken = &fluid->paths.all[path];
                connection->rate += taken->rate;
                for (int32_t at = taken->first_use; at < taken->end_use; at++)
                    fluid->part[fluid->uses.all[at].part].room -= fluid->uses.all[at].load * taken->rate;
            }
        }
    }
    fluid->allocated = 1;
}

/* Writes the max-min fair rates of all paths. */
void fluid_fair_rates(Fluid *fluid, double *rates) {
    for (int32_t part = 0; part < fluid->parts; part++) fluid->part[part].room = fluid->part[part].capacity;
    for (int32_t path = 0; path < fluid->paths.many; path++) grow_path(fluid, path);
    fair(fluid);
    for (int32_t path = 0; path < fluid->paths.many; path++) rates[path] = fluid->paths.all[path].rate;
}

/* Updates the busy connections' unsent bytes to this time. */
void fluid_update(Fluid *fluid, double now_s) {
    double passed_s = now_s - fluid->since_s;
    if (passed_s != 0.0 && fluid->busy.many) {
        fluid_allocate(fluid);
        for (int32_t place = 0; place < fluid->busy.many; place++) {
            Connection *own = &fluid->connections.all[fluid->busy.all[place]];
            own->left_bytes -= own->rate * passed_s;
        }
    }
    fluid->since_s = now_s;
}

/* Starts a connection's next message. */
static void fluid_start_next(Fluid *fluid, Connection *connection) {
    const Queued *queued = &fluid->queued.all[connection->first];
    connection->left_bytes = queued->size_bytes;
    fluid->known = 0;
    if (connection->turn != queued->turn) fluid->allocated = 0;
    connection->turn = queued->turn;
}

/* Queues a message on a connection and returns the number of busy ones. turn: -1 for none. tag: its identity. */
int32_t fluid_send(Fluid *fluid, int32_t number, double size_bytes, int64_t turn, int64_t tag, double now_s) {
    Connection *connection = &fluid->connections.all[number];
    int32_t made = fluid->unused;
    if (made < 0) made = TAKE(fluid->queued);
    else fluid->unused = fluid->queued.all[made].next;
    if (size_bytes > connection->queue_bytes) turn = -1;
    fluid->queued.all[made] = (Queued){size_bytes, turn, tag, -1};
    int32_t last = connection->last;
    connection->last = made;
    if (connection->first >= 0) {
        fluid->queued.all[last].next = made;
        return fluid->busy.many;
    }
    connection->first = made;
    fluid_update(fluid, now_s);
    connection->place = TAKE(fluid->busy);
    fluid->busy.all[connection->place] = number;
    EACH(own, through, connection) {
        Through *through = &fluid->throughs.all[own];
        Portion *part = &fluid->part[through->part];
        through->before = part->last;
        through->after = -1;
        if (part->last < 0) part->first = own;
        else fluid->throughs.all[part->last].after = own;
        part->last = own;
        part->many++;
    }
    fluid->allocated = 0;
    fluid_start_next(fluid, connection);
    return fluid->busy.many;
}

static void fluid_set_idle(Fluid *fluid, Connection *connection) {
    fluid->busy.many--;
    for (int32_t place = connection->place; place < fluid->busy.many; place++) {
        int32_t other = fluid->busy.all[place + 1];
        fluid->busy.all[place] = other;
        fluid->connections.all[other].place = place;
    }
    connection->place = -1;
    connection->turn = -1;
    EACH(own, through, connection) {
        const Through *through = &fluid->throughs.all[own];
        Portion *part = &fluid->part[through->part];
        if (through->before < 0) part->first = through->after;
        else fluid->throughs.all[through->before].after = through->after;
        if (through->after < 0) part->last = through->before;
        else fluid->throughs.all[through->after].before = through->before;
        part->many--;
    }
    fluid->allocated = fluid->known = 0;
}

/* Returns when the next message will have left; infinity if nothing flows. */
double fluid_leaves_s(Fluid *fluid) {
    if (fluid->known) return fluid->leaves_s;
    double soonest_s = INFINITY;
    fluid_allocate(fluid);
    for (int32_t place = 0; place < fluid->busy.many; place++) {
        const Connection *own = &fluid->connections.all[fluid->busy.all[place]];
        double after_s = own->left_bytes / own->rate;
        if (after_s < soonest_s) soonest_s = after_s;
    }
    fluid->known = 1;
    return fluid->leaves_s = fluid->since_s + soonest_s;
}

/* Finds the messages that have left by now and returns how many; `fluid_complete` completes each. */
int32_t fluid_find_gone(Fluid *fluid, double now_s) {
    double over_s = fmax(INSTANT_S, MOST_ULPS * (nextafter(now_s, INFINITY) - now_s));
    fluid->gone.many = 0;
    if (fluid_leaves_s(fluid) - now_s > over_s) return 0;
    fluid_update(fluid, now_s);
    fluid_allocate(fluid);
    for (int32_t place = 0; place < fluid->busy.many; place++) {
        int32_t number = fluid->busy.all[place];
        const Connection *own = &fluid->connections.all[number];
        if (own->left_bytes > own->rate * over_s) continue;
        int32_t made = TAKE(fluid->gone);
        fluid->gone.all[made] = number;
    }
    return fluid->gone.many;
}

/* Completes a message that has left and returns its tag. */
int64_t fluid_complete(Fluid *fluid, int32_t which) {
    Connection *connection = &fluid->connections.all[fluid->gone.all[which]];
    int32_t place = connection->first;
    Queued *queued = &fluid->queued.all[place];
    connection->first = queued->next;
    queued->next = fluid->unused;
    fluid->unused = place;
    if (connection->first >= 0) fluid_start_next(fluid, connection);
    else fluid_set_idle(fluid, connection);
    return queued->tag;
}

/* Returns how long until a message has left if everything in queues now goes before it. */
double fluid_ahead_s(Fluid *fluid, int32_t number, double size_bytes, double now_s) {
    const Connection *connection = &fluid->connections.all[number];
    int32_t itself = connection->place >= 0, others = 0;
    EACH(own, through, connection) {
        const Portion *part = &fluid->part[fluid->throughs.all[own].part];
        others |= part->queue > 0.0 && part->many > itself;
    }
    if (!others) return 0.0;
    fluid_update(fluid, now_s);
    double latest_s = 0.0, slowest_s = 0.0;
    EACH(own, through, connection) {
        const Through *through = &fluid->throughs.all[own];
        slowest_s = fmax(slowest_s, through->load * size_bytes / fluid->part[through->part].capacity);
    }
    int before = 1; /* it reaches the slowest part later by its waiting time */
    EACH(own, through, connection) {
        const Through *through = &fluid->throughs.all[own];
        const Portion *part = &fluid->part[through->part];
        double waiting = 0.0, own_s = through->load * size_bytes / part->capacity;
        before = before && own_s < slowest_s;
        if (part->queue > 0.0) {
            for (int32_t at = part->first; at >= 0; at = fluid->throughs.all[at].after) {
                const Through *other = &fluid->throughs.all[at];
                const Connection *busy = &fluid->connections.all[other->connection];
                if (other->connection != number) waiting += other->load * fmin(busy->left_bytes, busy->burst_bytes);
            }
            waiting = fmin(waiting, part->queue);
        }
        if (waiting != 0.0) latest_s = fmax(latest_s, waiting / part->capacity + (before ? slowest_s : own_s));
    }
    return latest_s;
}

/* ---- for Python */

/* Returns an idle network; `fluid_free` frees it. The arrays must live as long. */
Fluid *fluid_new(int32_t parts, const double *capacity, const double *queue, int32_t classes, const int32_t *link,
                 const int32_t *part, const double *share, const double *limit) {
    Fluid *fluid = checked(calloc(1, sizeof *fluid));
    fluid_init(fluid, parts, checked(calloc((size_t)parts + 1, sizeof(Portion))), capacity, queue);
    fluid->classes = (Classes){classes, link, part, share, limit};
    return fluid;
}

int32_t fluid_busy(const Fluid *fluid) { return fluid->busy.many; }

#define FREED(pool) free(fluid->pool.all);

void fluid_free(Fluid *fluid) {
    FLUID_POOLS(FREED)
    free(fluid->part);
    free(fluid);
}
