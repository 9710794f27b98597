/* What a call is looked up by: words, and a table of them. A look-up is part of every operator's
 * cost: to put a word costs a store, and the hash is made in one go at the end, where no
 * multiplication waits for the one before. */
#ifndef DT_PYTHON_KEYS_H
#define DT_PYTHON_KEYS_H
#include <c10/macros/Macros.h>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace dt_pu
{

class Key
{
  public:
    Key() : words(new uint64_t[256]), next(words.get()), end(next + 256)
    {
    }
    void clear()
    {
        next = words.get();
    }
    template <typename T> void put(T value)
    {
        static_assert(sizeof value <= sizeof(uint64_t), "one word");
        uint64_t word = 0;
        memcpy(&word, &value, sizeof value);
        put_word(word);
    }
    void put_bytes(const void *data, size_t bytes)
    {
        for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
            uint64_t word = 0;
            memcpy(&word, static_cast<const char *>(data) + at,
                   bytes - at < sizeof word ? bytes - at : sizeof word);
            put_word(word);
        }
    }
    uint64_t hash() const
    {
        uint64_t sum = 0, factor = UINT64_C(0xff51afd7ed558ccd);
        for (const uint64_t *at = words.get(); at < next; at++) {
            sum += *at * factor;
            factor += UINT64_C(0x9e3779b97f4a7c16); /* it stays odd */
        }
        sum = (sum ^ sum >> 32) * UINT64_C(0xff51afd7ed558ccd);
        return sum ^ sum >> 29;
    }
    std::vector<uint64_t> copy() const
    {
        return {words.get(), next};
    }
    bool equals(const std::vector<uint64_t> &other) const
    {
        const size_t count = (size_t)(next - words.get());
        uint64_t difference = 0;
        if (count != other.size())
            return false;
        for (size_t i = 0; i < count; i++)
            difference |= words[i] ^ other[i];
        return difference == 0;
    }

  private:
    std::unique_ptr<uint64_t[]> words;
    uint64_t *next, *end; /* within `words` */

    void put_word(uint64_t word)
    {
        if (C10_UNLIKELY(next == end))
            grow();
        *next++ = word;
    }
    C10_NOINLINE void grow()
    {
        const size_t count = (size_t)(next - words.get());
        std::unique_ptr<uint64_t[]> more(new uint64_t[2 * count]);
        memcpy(more.get(), words.get(), count * sizeof(uint64_t));
        words = std::move(more);
        next = words.get() + count;
        end = next + count;
    }
};

/* Open addressing; values stay where they are until they are taken out. Not for several threads. */
template <typename T> class KeyTable
{
  public:
    KeyTable() : slots(64)
    {
    }
    T *find(const Key &key) const
    {
        const uint64_t hash = key.hash();
        for (size_t at = hash & (slots.size() - 1);; at = (at + 1) & (slots.size() - 1)) {
            const Slot &slot = slots[at];
            if (!slot.entry)
                return nullptr;
            if (slot.hash == hash && key.equals(slot.entry->key))
                return &slot.entry->value;
        }
    }
    /* The key must not be there yet. */
    T *add(const Key &key, T value)
    {
        if (2 * ++used > slots.size())
            place_anew(2 * slots.size());
        auto entry = std::make_unique<Entry>(Entry{key.copy(), std::move(value)});
        T *made = &entry->value;
        place({key.hash(), std::move(entry)});
        return made;
    }
    size_t size() const
    {
        return used;
    }
    template <typename F> void for_each(F &&see)
    {
        for (Slot &slot : slots)
            if (slot.entry)
                see(slot.entry->value);
    }
    /* Those for which `goes` holds, which may move the value away, are taken out. */
    template <typename F> void take_out(F &&goes)
    {
        for (Slot &slot : slots)
            if (slot.entry && goes(slot.entry->value)) {
                slot.entry.reset();
                used--;
            }
        place_anew(slots.size());
    }
    void clear()
    {
        slots = std::vector<Slot>(64);
        used = 0;
    }

  private:
    struct Entry {
        std::vector<uint64_t> key;
        T value;
    };
    struct Slot {
        uint64_t hash = 0;
        std::unique_ptr<Entry> entry; /* NULL: free */
    };
    std::vector<Slot> slots; /* a power of two, at most half full */
    size_t used = 0;

    void place(Slot slot)
    {
        size_t at = slot.hash & (slots.size() - 1);
        while (slots[at].entry)
            at = (at + 1) & (slots.size() - 1);
        slots[at] = std::move(slot);
    }
    void place_anew(size_t count)
    {
        std::vector<Slot> old(count);
        old.swap(slots);
        for (Slot &slot : old)
            if (slot.entry)
                place(std::move(slot));
    }
};

} // namespace dt_pu
#endif
