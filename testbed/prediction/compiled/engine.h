/* A step as columns, filled in by network_simulator.py and network_columns.py, and the function that simulates it.
   Units are seconds and bytes. For ragged rows, `x_first` has the start of each row, and at its end the end of the last
   one. */

#pragma once

#include <stdint.h>

enum { TIMED, SENDS, RECEIVES, COLLECTIVE }; /* kinds of operations */
enum { DONE, STUCK, UNLIKE };                /* results of `play`; UNLIKE: members disagree on a collective */

typedef struct {
    /* numbers of each; ahead: rounds whose receives are posted in advance */
    int32_t ranks, groups, parts, connections, lanes, boxes, instances, ahead;
    int32_t holds, at_once, folded; /* see JobPlan, Network, simulate */
    double message_s, byte_s, handover_s, buffer_bytes;

    /* operations of each distinct rank program; `next`: the operations of the same rank that depend on one */
    const int32_t *rank_kind, *kind_first;
    const int8_t *operation;
    const double *duration_s;
    const int32_t *missing, *following, *next_first, *next;
    /* each rank's operations; what: a message, a mailbox, or a member's part in a collective */
    const int32_t *rank_first, *what;
    const int32_t *message_box, *message_transfer;

    /* transfers: so many bytes on a lane */
    const int32_t *transfer_lane;
    const double *transfer_bytes, *transfer_whole_bytes, *transfer_latency_s;

    /* lanes, and the connections of their hops */
    const int32_t *lane_source, *lane_target, *lane_connection, *lane_hops, *leg_first, *leg_connection;
    const double *lane_packet_bytes, *leg_packet_s, *leg_delay_s;

    /* connections: the parts of each path */
    const int32_t *path_first, *step_first, *step_part;
    const double *step_load, *queue_bytes, *burst_bytes;
    const double *capacity, *queue;

    /* collectives, and members' parts in them: channels, stages, strands, rounds */
    const int32_t *class_group, *class_members, *class_boxes, *class_connection;
    const double *class_bytes, *class_rest_s;
    const int32_t *part_class, *channel_first, *stage_first, *strand_first, *round_first;
    const int32_t *send_first, *send_box, *send_transfer, *receive_first, *receive_box;
    const int32_t *instance_first; /* per group */
} Step;

/* Simulates a step; returns DONE, STUCK or UNLIKE. begun_s, ended_s: of all operations. worked_s: software time per
   rank. burst_bytes: the most that a pair had to send at once. */
int play(const Step *step, double *begun_s, double *ended_s, double *worked_s, double *burst_bytes);
