/* Messages: mailboxes, software, send buffers, and transfers through the network. See ../protocols.py,
   ../connections.py and ../channels.py. */

#pragma once

#include "play.h"

static void resume(Play *play, int32_t who, int32_t index) {
    if (index >= 0) {
        finish(play, who, index);
    } else if (who >= 0 && !--play->strands.all[who].missing) {
        advance_strand(play, who);
    }
}

static void on_accepted(Play *play, int32_t number) {
    Message *message = &play->messages.all[number];
    int32_t who = message->who, index = message->index;
    if (index >= 0) {
        finish(play, who, index);
    } else {
        Strand *strand = &play->strands.all[who];
        if (!--strand->sends && strand->ending) advance_strand(play, who);
    }
}

static void buffer_put(Play *play, int32_t number, double whole_bytes) {
    Message *message = &play->messages.all[number];
    Buffer *buffer = &play->buffers[play->step->transfer_lane[message->transfer]];
    buffer->put_bytes += whole_bytes;
    if (buffer->waiting < 0 && buffer->put_bytes <= buffer->left_bytes + play->step->buffer_bytes) {
        on_accepted(play, number);
        return;
    }
    message->put_bytes = buffer->put_bytes;
    message->next = -1;
    if (buffer->waiting < 0) buffer->waiting = number;
    else play->messages.all[buffer->last_waiting].next = number;
    buffer->last_waiting = number;
}

static void buffer_leave(Play *play, int32_t lane, double whole_bytes) {
    Buffer *buffer = &play->buffers[lane];
    buffer->left_bytes += whole_bytes;
    while (buffer->waiting >= 0) {
        int32_t number = buffer->waiting;
        if (play->messages.all[number].put_bytes > buffer->left_bytes + play->step->buffer_bytes) break;
        buffer->waiting = play->messages.all[number].next;
        on_accepted(play, number);
    }
}

static void transmit(Play *play, int32_t number) {
    int32_t transfer = play->messages.all[number].transfer;
    int32_t here = play->step->lane_source[play->step->transfer_lane[transfer]];
    software_work(play, here, play->step->transfer_bytes[transfer], START_TRANSFER, number);
}

/* Sends a message to a mailbox. who, index: continues when the message is in the send buffer, see Message. */
static void send_message(Play *play, int32_t box, int32_t transfer, int32_t held, int32_t who, int32_t index) {
    int32_t number = TAKE(play->messages);
    play->messages.all[number] = (Message){.transfer = transfer, .box = box, .who = who, .index = index, .next = -1};
    Box *own = &play->boxes.all[box];
    if (held && !own->allowed) {
        if (own->held < 0) own->held = number;
        else play->messages.all[own->last_held].next = number;
        own->last_held = number;
        return;
    }
    own->allowed -= held;
    transmit(play, number);
}

/* Waits for the next message of a mailbox and returns the receive's number. */
static int32_t post_receive(Play *play, int32_t box) {
    Box *own = &play->boxes.all[box];
    if (own->held >= 0) {
        int32_t first = own->held;
        own->held = play->messages.all[first].next;
        transmit(play, first);
    } else {
        own->allowed++;
    }
    int32_t number = TAKE(play->receives);
    Receive *receive = &play->receives.all[number];
    *receive = (Receive){.done = own->come > 0, .who = -1, .index = -1, .next = -1};
    if (receive->done) {
        own->come--;
    } else {
        if (own->waiting < 0) own->waiting = number;
        else play->receives.all[own->last_waiting].next = number;
        own->last_waiting = number;
    }
    return number;
}

static void arrive(Play *play, int32_t box) {
    Box *own = &play->boxes.all[box];
    if (own->waiting < 0) {
        own->come++;
        return;
    }
    Receive *receive = &play->receives.all[own->waiting];
    own->waiting = receive->next;
    receive->done = 1;
    resume(play, receive->who, receive->index);
}

/* ---- the network */

enum { WHOLE, FIRST, ONLY, THROUGH, FLOW, TAGS }; /* which part of a message has left */

static double ahead_s(Play *play, int32_t connection, double size_bytes) {
    return fluid_ahead_s(&play->fluid, connection, size_bytes, play->now_s);
}

static void flow_send(Play *play, int32_t connection, double size_bytes, int64_t turn, int32_t which, int32_t number) {
    fluid_send(&play->fluid, connection, size_bytes, turn, (int64_t)number * TAGS + which, play->now_s);
}

/* Sends a message over the hop of this number, and then over those after it. */
static void send_by_hop(Play *play, int32_t number, int32_t leg) {
    const Step *step = play->step;
    Message *message = &play->messages.all[number];
    int32_t lane = step->transfer_lane[message->transfer], first = step->leg_first[lane], own = first + leg;
    int32_t connection = step->leg_connection[own], last = own + 1 == step->leg_first[lane + 1];
    double size_bytes = step->transfer_whole_bytes[message->transfer], packet_bytes = step->lane_packet_bytes[lane];
    double ahead = ahead_s(play, connection, size_bytes);
    double before_s = leg ? message->until_s + step->leg_delay_s[own - 1] : 0.0;
    message->until_s = fmax(before_s, play->now_s + ahead);
    int64_t turn = leg ? play->turn++ : message->turn;
    if (last) {
        flow_send(play, connection, size_bytes, turn, THROUGH, number);
        return;
    }
    double first_bytes = fmin(size_bytes, packet_bytes);
    message->rest_s -= step->leg_packet_s[own] * first_bytes / packet_bytes + step->leg_delay_s[own];
    flow_send(play, connection, first_bytes, turn, first_bytes == size_bytes ? ONLY : FIRST, number);
    if (first_bytes < size_bytes) flow_send(play, connection, size_bytes - first_bytes, turn, THROUGH, number);
}

static void start_transfer(Play *play, int32_t number) {
    const Step *step = play->step;
    Message *message = &play->messages.all[number];
    int32_t transfer = message->transfer, lane = step->transfer_lane[transfer];
    int32_t connection = step->lane_connection[lane];
    double whole_bytes = step->transfer_whole_bytes[transfer];
    play->sending[lane] += step->transfer_bytes[transfer];
    play->most_bytes = fmax(play->most_bytes, play->sending[lane]);
    message->turn = step->at_once ? play->turn++ : -1;
    message->rest_s = step->transfer_latency_s[transfer];
    if (step->lane_hops[lane] && step->at_once && whole_bytes <= step->queue_bytes[connection]) {
        message->until_s = 0.0;
        send_by_hop(play, number, 0);
    } else {
        message->until_s = play->now_s + ahead_s(play, connection, whole_bytes);
        flow_send(play, connection, whole_bytes, message->turn, WHOLE, number);
    }
    buffer_put(play, number, whole_bytes);
}

static void on_sent(Play *play, int32_t number, double after_s) {
    int32_t transfer = play->messages.all[number].transfer, lane = play->step->transfer_lane[transfer];
    call_later(play, after_s, DELIVERED, number, 0);
    play->sending[lane] -= play->step->transfer_bytes[transfer];
    buffer_leave(play, lane, play->step->transfer_whole_bytes[transfer]);
}

static void hop_done(Play *play, int32_t number) {
    Message *message = &play->messages.all[number];
    const int32_t *first = &play->step->leg_first[play->step->transfer_lane[message->transfer]];
    if (++message->over < first[1] - first[0]) return;
    on_sent(play, number, fmax(0.0, message->rest_s) + fmax(0.0, message->until_s - play->now_s));
}

