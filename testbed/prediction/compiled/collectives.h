/* Collectives, message by message or as one flow each. See ../collective_messages.py and ../plan_simulation.py. */

#pragma once

#include "messages.h"

static void post_round(Play *play, int32_t number, int32_t round) {
    const Step *step = play->step;
    int32_t boxes = play->channels.all[play->strands.all[number].channel].boxes;
    play->strands.all[number].posted[round % step->ahead] = play->receives.many;
    for (int32_t own = step->receive_first[round]; own < step->receive_first[round + 1]; own++)
        post_receive(play, boxes + step->receive_box[own]);
}

static int32_t await_round(Play *play, int32_t number, int32_t round) {
    const Step *step = play->step;
    Strand *strand = &play->strands.all[number];
    int32_t first = strand->posted[round % step->ahead];
    int32_t end = first + step->receive_first[round + 1] - step->receive_first[round];
    strand->missing = 0;
    for (int32_t own = first; own < end; own++) {
        Receive *receive = &play->receives.all[own];
        if (!receive->done) {
            receive->who = number;
            strand->missing++;
        }
    }
    return strand->missing;
}

static void advance_strand(Play *play, int32_t number) {
    const Step *step = play->step;
    Strand *strand = &play->strands.all[number];
    int32_t boxes = play->channels.all[strand->channel].boxes;
    while (strand->round < strand->end) {
        if (strand->round >= 0) { /* all of its receives have completed */
            if (strand->round + step->ahead < strand->end) post_round(play, number, strand->round + step->ahead);
            strand->round++;
        } else {
            strand->round = strand->first;
        }
        if (strand->round == strand->end) break;
        for (int32_t own = step->send_first[strand->round]; own < step->send_first[strand->round + 1]; own++) {
            strand->sends++;
            send_message(play, boxes + step->send_box[own], step->send_transfer[own], 0, number, -1);
        }
        if (await_round(play, number, strand->round)) return;
    }
    strand->ending = 1;
    if (strand->sends) return;
    int32_t channel = strand->channel;
    if (!--play->channels.all[channel].left) advance_channel(play, channel);
}

static void start_strand(Play *play, int32_t channel, int32_t which) {
    const Step *step = play->step;
    int32_t number = TAKE(play->strands), first = step->round_first[which], end = step->round_first[which + 1];
    int32_t *posted = arena_take(&play->arena, (size_t)step->ahead * sizeof(int32_t));
    Strand made = {.channel = channel, .round = -1, .first = first, .end = end, .posted = posted};
    if (first == end) made.round = end;
    play->strands.all[number] = made;
    for (int32_t round = first; round < end && round < first + step->ahead; round++) post_round(play, number, round);
    advance_strand(play, number);
}

static void advance_channel(Play *play, int32_t number) {
    const Step *step = play->step;
    for (;;) {
        Channel *channel = &play->channels.all[number];
        int32_t part = channel->part, stage = channel->stage;
        if (stage == channel->end) {
            if (!--play->parts.all[part].left) finish(play, play->parts.all[part].rank, play->parts.all[part].index);
            return;
        }
        channel->stage++;
        channel->left = 1 + step->strand_first[stage + 1] - step->strand_first[stage];
        for (int32_t own = step->strand_first[stage]; own < step->strand_first[stage + 1]; own++)
            start_strand(play, number, own);
        if (--play->channels.all[number].left) return;
    }
}

/* Joins a folded collective: it starts when the last member joins and ends for all members at once. */
static void join_folded(Play *play, int32_t rank, int32_t index, int32_t class, int32_t number) {
    const Step *step = play->step;
    Instance *instance = &play->instances[number];
    int32_t members = step->class_members[class];
    if (!instance->who) {
        instance->who = arena_take(&play->arena, 2 * (size_t)members * sizeof(int32_t));
        instance->index = instance->who + members;
    }
    instance->who[instance->come] = rank;
    instance->index[instance->come] = index;
    instance->class = class;
    if (++instance->come < members) return;
    if (step->class_connection[class] < 0) {
        for (int32_t own = 0; own < members; own++) finish(play, instance->who[own], instance->index[own]);
        return;
    }
    flow_send(play, step->class_connection[class], step->class_bytes[class], -1, FLOW, number);
}

static void start_collective(Play *play, int32_t rank, int32_t index, int32_t which) {
    const Step *step = play->step;
    int32_t class = step->part_class[which], group = step->class_group[class];
    int32_t number = step->instance_first[group] + play->sequence[rank * step->groups + group]++;
    Instance *instance = &play->instances[number];
    if (step->folded) {
        join_folded(play, rank, index, class, number);
        return;
    }
    if (!instance->come++) {
        instance->class = class;
        instance->boxes = add_boxes(play, step->class_boxes[class]);
    } else if (instance->class != class) {
        play->status = UNLIKE;
        return;
    }
    int32_t boxes = instance->boxes, part = TAKE(play->parts);
    int32_t first = step->channel_first[which], end = step->channel_first[which + 1];
    play->parts.all[part] = (Part){rank, index, 1 + end - first};
    for (int32_t own = first; own < end; own++) {
        int32_t made = TAKE(play->channels);
        play->channels.all[made] =
            (Channel){.part = part, .stage = step->stage_first[own], .end = step->stage_first[own + 1], .boxes = boxes};
        advance_channel(play, made);
    }
    if (!--play->parts.all[part].left) finish(play, rank, index);
}

