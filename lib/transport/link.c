#include "transport/link.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/board.h"

/* ---- heads ---- */

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void put_u64(uint8_t *at, uint64_t value)
{
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at)
{
    return get_u32(at) | (uint64_t)get_u32(at + 4) << 32;
}

void dt_link_put(uint8_t *bytes, const dt_link_head_t *head)
{
    memset(bytes, 0, DT_LINK_HEAD_BYTES);
    put_u32(bytes, DT_LINK_MAGIC);
    bytes[4] = head->kind;
    bytes[5] = head->phase;
    bytes[6] = head->wave;
    put_u64(bytes + 8, head->number);
    put_u64(bytes + 16, head->sequence);
    put_u32(bytes + 24, (uint32_t)head->code);
    put_u32(bytes + 28, head->from);
    put_u32(bytes + 32, head->to);
    put_u32(bytes + 36, head->part);
    put_u32(bytes + 40, head->size);
}

static bool is_word(const dt_link_head_t *head)
{
    switch (head->phase) {
    case DT_BOARD_PUBLISHED:
        return head->size <= DT_TRANSPORT_CAUSE_MAX;
    case DT_BOARD_FAILED:
        return head->size < DT_LINK_TEXT_MAX && head->code < 0 && head->code >= DT_ERR_INTERNAL;
    case DT_BOARD_DONE:
    case DT_BOARD_ENDED:
        return head->size == 0;
    default:
        return false;
    }
}

bool dt_link_get(const uint8_t *bytes, dt_link_head_t *ret_head)
{
    *ret_head = (dt_link_head_t){
        .kind = bytes[4],
        .phase = bytes[5],
        .wave = bytes[6],
        .number = get_u64(bytes + 8),
        .sequence = get_u64(bytes + 16),
        .code = (int32_t)get_u32(bytes + 24),
        .from = get_u32(bytes + 28),
        .to = get_u32(bytes + 32),
        .part = get_u32(bytes + 36),
        .size = get_u32(bytes + 40),
    };
    if (get_u32(bytes) != DT_LINK_MAGIC || bytes[7] != 0 || get_u32(bytes + 44) != 0 ||
        ret_head->number >> 60 != 0)
        return false;
    if (ret_head->kind == DT_LINK_WORD)
        return is_word(ret_head);
    return ret_head->kind == DT_LINK_DATA && ret_head->wave <= 1 && ret_head->size > 0 &&
           ret_head->size <= DT_LINK_BODY_MAX;
}

/* ---- life ---- */

dt_status_t dt_transport_link_create(int fd, const dt_link_secret_t *secret, dt_link_t **ret_link,
                                     dt_error_t *err)
{
    dt_link_t *link = calloc(1, sizeof *link);
    if (link)
        link->cause = malloc(DT_TRANSPORT_CAUSE_MAX);
    if (!link || !link->cause) {
        free(link);
        return dt_fail(err, DT_ERR_NOMEM, "dt", 0, "no memory for a link");
    }
    link->fd = -1;
    dt_status_t status =
        secret ? dt_tls_create_keyed(secret->key, secret->is_server, &link->tls, err) : DT_OK;
    if (status != DT_OK) {
        dt_transport_link_free(link);
        return status;
    }
    link->fd = fd;
    *ret_link = link;
    return DT_OK;
}

void dt_transport_link_free(dt_link_t *link)
{
    if (!link)
        return;
    if (link->head.kind == DT_LINK_DATA)
        free(link->body);
    free(link->cause);
    free(link->words);
    free(link->data);
    dt_link_close(link);
    dt_tls_free(link->tls);
    free(link);
}

void dt_link_close(dt_link_t *link)
{
    if (link->fd >= 0)
        (void)close(link->fd);
    link->fd = -1;
    link->is_broken = true;
}

void dt_link_begin(dt_link_t *link)
{
    link->piece = link->part = link->send = 0;
    link->ahead = 0;
}

/* ---- out ---- */

bool dt_link_say(dt_link_t *link, const dt_link_head_t *head, const void *body)
{
    size_t size = DT_LINK_HEAD_BYTES + head->size;
    if (link->words_len == 0)
        link->words_at = 0;
    if (link->words_at + link->words_len + size > link->words_cap) {
        size_t cap = 2 * (link->words_at + link->words_len + size);
        uint8_t *grown = realloc(link->words, cap);
        if (!grown) {
            link->is_broken = true;
            return false;
        }
        link->words = grown;
        link->words_cap = cap;
    }
    uint8_t *at = link->words + link->words_at + link->words_len;
    dt_link_put(at, head);
    if (head->size > 0)
        memcpy(at + DT_LINK_HEAD_BYTES, body, head->size);
    link->words_len += size;
    return true;
}

/* Returns bytes sent; 0: the socket is full, or broke. */
static size_t send_some(dt_link_t *link, uint8_t *bytes, size_t size)
{
    if (link->tls) {
        ssize_t taken = dt_tls_send(link->tls, link->fd, bytes, size, NULL);
        link->is_broken |= taken < 0;
        return taken > 0 ? (size_t)taken : 0;
    }
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    const struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;
    do
        sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        link->is_broken = true;
    return sent > 0 ? (size_t)sent : 0;
}

/* The next box for this member, if its time has come. */
static const dt_exchange_send_t *send_next(dt_link_t *link, const dt_link_turn_t *turn)
{
    const dt_exchange_plan_t *plan = turn->plan;
    while (link->send < plan->send_count &&
           plan->places[plan->sends[link->send].to.place].member != turn->member)
        link->send++;
    if (link->send == plan->send_count)
        return NULL;
    const dt_exchange_send_t *send = &plan->sends[link->send];
    if (send->wave == 0)
        return send;
    bool is_made =
        send->after == DT_EXCHANGE_NOBODY ? turn->has_wave0 : plan->pieces[send->after].is_done;
    return is_made ? send : NULL;
}

bool dt_link_is_sent(dt_link_t *link, const dt_link_turn_t *turn)
{
    (void)send_next(link, turn);
    return link->send == turn->plan->send_count && link->data_len == 0;
}

static bool data_fill(dt_link_t *link, const dt_link_turn_t *turn)
{
    const dt_exchange_send_t *send = turn->may_send ? send_next(link, turn) : NULL;
    if (!send)
        return false;
    if (!link->data)
        link->data = malloc(DT_LINK_HEAD_BYTES + (size_t)DT_LINK_BODY_MAX);
    if (!link->data) {
        link->is_broken = true;
        return false;
    }
    const dt_link_head_t head = {
        .kind = DT_LINK_DATA,
        .wave = send->wave,
        .number = turn->number,
        .from = (uint32_t)turn->plan->places[send->from.place].vdev,
        .to = (uint32_t)turn->plan->places[send->to.place].vdev,
        .part = send->part,
        .size = (uint32_t)dt_exchange_box_bytes(turn->plan, send->sizes),
    };
    dt_link_put(link->data, &head);
    dt_exchange_send_pack(turn->plan, send, link->data + DT_LINK_HEAD_BYTES);
    link->data_at = 0;
    link->data_len = DT_LINK_HEAD_BYTES + (size_t)head.size;
    link->send++;
    return true;
}

/* Frames are sent whole: a box that has begun goes on before words that came later. */
static bool pump_out(dt_link_t *link, const dt_link_turn_t *turn)
{
    bool has_moved = false;
    if (link->tls && dt_tls_wants_out(link->tls))
        (void)send_some(link, NULL, 0); /* what it has taken before */
    while (!link->is_broken) {
        size_t sent;
        if (link->data_len > 0) {
            sent = send_some(link, link->data + link->data_at, link->data_len);
            link->data_at += sent;
            link->data_len -= sent;
        } else if (link->words_len > 0) {
            sent = send_some(link, link->words + link->words_at, link->words_len);
            link->words_at += sent;
            link->words_len -= sent;
        } else if (data_fill(link, turn)) {
            continue;
        } else {
            break;
        }
        has_moved |= sent > 0;
        if (sent == 0)
            break;
    }
    return has_moved;
}

/* ---- in ---- */

/* Returns bytes received; 0: there are none, or it broke. */
static size_t recv_some(dt_link_t *link, void *bytes, size_t size)
{
    if (link->tls) {
        ssize_t taken = dt_tls_recv(link->tls, link->fd, bytes, size, NULL);
        link->is_broken |= taken < 0;
        return taken > 0 ? (size_t)taken : 0;
    }
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t got;
    do
        got = recvmsg(link->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK))
        link->is_broken = true;
    return got > 0 ? (size_t)got : 0;
}

/* Stand before the part that this member sends next. False: it has sent all. */
static bool part_next(dt_link_t *link, const dt_link_turn_t *turn)
{
    const dt_exchange_plan_t *plan = turn->plan;
    for (; link->piece < plan->piece_count; link->piece++, link->part = 0) {
        const dt_exchange_piece_t *piece = &plan->pieces[link->piece];
        for (; piece->stages && link->part < piece->part_count; link->part++)
            if (plan->places[piece->parts[link->part].place].member == turn->member)
                return true;
    }
    return false;
}

/* Whether a DATA head is the one that must come. */
static bool is_expected(dt_link_t *link, const dt_link_turn_t *turn)
{
    const dt_exchange_plan_t *plan = turn->plan;
    const dt_link_head_t *head = &link->head;
    if (head->number != turn->number || !part_next(link, turn))
        return false;
    const dt_exchange_piece_t *piece = &plan->pieces[link->piece];
    return head->wave == piece->wave && head->size == dt_exchange_box_bytes(plan, piece->sizes) &&
           head->from == plan->places[piece->parts[link->part].place].vdev &&
           head->to == plan->places[piece->to.place].vdev;
}

static void head_take(dt_link_t *link, const dt_link_turn_t *turn)
{
    link->body = NULL;
    link->body_len = 0;
    if (!dt_link_get(link->head_bytes, &link->head)) {
        link->is_broken = true;
        return;
    }
    if (link->head.kind == DT_LINK_WORD) {
        if (link->head.phase == DT_BOARD_PUBLISHED)
            link->body = link->cause;
        else
            link->body = (uint8_t *)link->text;
        return;
    }
    if (turn->is_discarded && link->head.number == turn->number)
        return;
    if (!is_expected(link, turn)) {
        link->is_broken = true;
        return;
    }
    link->body = malloc(link->head.size);
    link->is_broken = link->body == NULL;
}

static void body_take(dt_link_t *link, const dt_link_turn_t *turn)
{
    const dt_link_head_t *head = &link->head;
    link->head_len = 0;
    if (head->kind == DT_LINK_DATA) {
        uint8_t *body = DT_TAKE(link->body);
        if (turn->came)
            (void)atomic_fetch_add_explicit(turn->came, head->size, memory_order_relaxed);
        if (turn->is_discarded || !body) {
            free(body);
            return;
        }
        dt_exchange_piece_t *piece = &turn->plan->pieces[link->piece];
        piece->stages[link->part++] = body;
        piece->staged++;
        link->ahead++;
        return;
    }
    uint64_t word = dt_board_word(head->number, head->phase);
    if (word <= link->word) {
        link->is_broken = true;
        return;
    }
    if (head->phase == DT_BOARD_PUBLISHED) {
        link->cause_bytes = head->size;
        link->cause_sequence = head->sequence;
    } else if (head->phase == DT_BOARD_FAILED) {
        link->text[head->size] = '\0';
        link->failed_code = head->code;
    }
    link->word = word;
}

static bool pump_in(dt_link_t *link, const dt_link_turn_t *turn)
{
    uint8_t nowhere[4096];
    bool has_moved = false;
    while (!link->is_broken) {
        size_t got;
        if (link->head_len < DT_LINK_HEAD_BYTES) {
            if (link->head_len == 0 && link->ahead >= DT_LINK_AHEAD)
                break;
            got = recv_some(link, link->head_bytes + link->head_len,
                            DT_LINK_HEAD_BYTES - link->head_len);
            link->head_len += (uint32_t)got;
            if (link->head_len == DT_LINK_HEAD_BYTES)
                head_take(link, turn);
        } else {
            size_t left = link->head.size - link->body_len;
            size_t most = link->body ? left : left < sizeof nowhere ? left : sizeof nowhere;
            got = recv_some(link, link->body ? link->body + link->body_len : nowhere, most);
            link->body_len += (uint32_t)got;
        }
        has_moved |= got > 0;
        if (!link->is_broken && link->head_len == DT_LINK_HEAD_BYTES &&
            link->body_len == link->head.size)
            body_take(link, turn);
        else if (got == 0)
            break;
    }
    return has_moved;
}

bool dt_link_pump(dt_link_t *link, const dt_link_turn_t *turn)
{
    if (link->is_broken)
        return false;
    bool has_moved = pump_out(link, turn);
    has_moved |= pump_in(link, turn);
    return has_moved || link->is_broken;
}

bool dt_link_has_more(const dt_link_t *link)
{
    return link->words_len > 0 || link->data_len > 0 || (link->tls && dt_tls_wants_out(link->tls));
}

/* With TLS the socket is full when TLS keeps something; during the handshake it is the other side
 * that is waited for. */
short dt_link_events(const dt_link_t *link)
{
    bool is_full = link->tls ? dt_tls_wants_out(link->tls) : dt_link_has_more(link);
    bool has_room = link->head_len > 0 || link->ahead < DT_LINK_AHEAD ||
                    (link->tls && !dt_tls_is_ready(link->tls));
    return (short)((is_full ? POLLOUT : 0) | (has_room ? POLLIN : 0));
}
