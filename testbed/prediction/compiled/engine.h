/* A step as columns, and what its play says: see playing.py, which fills this in. Figures are seconds and bytes.

Of what comes in rows of unlike lengths, `x_first` has for each row where it begins, and at its end where all end. */

#pragma once

#include <stdint.h>

enum { TIMED, SENDS, RECEIVES, COLLECTIVE }; /* kinds of operations */
enum { DONE, STUCK, UNLIKE };                /* what a play comes to */

typedef struct {
    /* how many of each; ahead: rounds whose receives are posted */
    int32_t ranks, groups, parts, connections, lanes, boxes, instances, ahead;
    int32_t holds, at_once, folded; /* see JobPlan, Network, simulate */
    double message_s, byte_s, handover_s, buffer_bytes;

    /* operations, of each kind of rank: `next` are numbers of operations of the same rank */
    const int32_t *rank_kind, *kind_first;
    const int8_t *operation;
    const double *duration_s;
    const int32_t *missing, *following, *next_first, *next;
    /* of each rank's operations: a message, a box, a member's part in a collective */
    const int32_t *rank_first, *what;
    const int32_t *message_box, *message_transfer;

    /* what is sent from rank to rank, so many bytes */
    const int32_t *transfer_lane;
    const double *transfer_bytes, *transfer_whole_bytes, *transfer_latency_s;

    /* ways between ranks; their legs' connections */
    const int32_t *lane_source, *lane_target, *lane_connection, *lane_hops, *leg_first, *leg_connection;
    const double *lane_packet_bytes, *leg_packet_s, *leg_delay_s;

    /* connections: their paths' parts, and those of all paths */
    const int32_t *path_first, *step_first, *step_part, *through_first, *through_part, *through_owner;
    const double *step_load, *through_load, *queue_bytes, *burst_bytes;
    const double *capacity, *queue;

    /* collectives; a member's part in one: channels, stages, strands, rounds */
    const int32_t *class_group, *class_members, *class_boxes, *class_connection;
    const double *class_bytes, *class_rest_s;
    const int32_t *part_class, *channel_first, *stage_first, *strand_first, *round_first;
    const int32_t *send_first, *send_box, *send_transfer, *receive_first, *receive_box;
    const int32_t *instance_first; /* of each group */
} Step;

/* begun_s, ended_s: of each rank's operations; worked_s: of each rank's software; burst_bytes: the most that a pair had
   to send at once. */
int play(const Step *step, double *begun_s, double *ended_s, double *worked_s, double *burst_bytes);
