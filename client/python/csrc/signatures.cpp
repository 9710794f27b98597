// The table of signatures: from a call's key to the number that the session knows it by.
#include <algorithm>
#include <unordered_set>

#include "internal.h"

namespace dt_pu
{
namespace
{

/* Below libdtorch's own bound, so that dropping is ours to do: it drops none whose number is known.
 */
constexpr size_t signatures_max = 12000;

/* Recorder held. */
struct Signatures {
    KeyTable<std::unique_ptr<Signature>> table;
    uint64_t tick = 0;
    /* Dropped lately: a call that waits for its results may still look at one. */
    std::vector<std::unique_ptr<Signature>> old;
};

Signatures &signatures()
{
    static auto *made = new Signatures;
    return *made;
}

/* The third that was not used for longest goes. */
void make_room(Signatures &s)
{
    std::vector<uint64_t> used;
    std::vector<uint32_t> numbers;
    dt_error_t err;
    s.table.for_each([&](const std::unique_ptr<Signature> &known) { used.push_back(known->used); });
    auto third = used.begin() + (ptrdiff_t)(used.size() / 3);
    std::nth_element(used.begin(), third, used.end());
    const uint64_t oldest = *third;
    s.old.clear();
    s.table.take_out([&](std::unique_ptr<Signature> &known) {
        if (known->used >= oldest)
            return false;
        numbers.push_back(known->number);
        s.old.push_back(std::move(known));
        return true;
    });
    /* Calls that differ only here are one signature there. */
    std::unordered_set<uint32_t> kept;
    s.table.for_each([&](const std::unique_ptr<Signature> &known) { kept.insert(known->number); });
    numbers.erase(std::remove_if(numbers.begin(), numbers.end(),
                                 [&](uint32_t number) { return kept.count(number) != 0; }),
                  numbers.end());
    must(dt_signature_drop(session(), numbers.data(), (uint32_t)numbers.size(), &err), err);
}

} // namespace

Signature *find_signature(const Key &key)
{
    Signatures &s = signatures();
    std::unique_ptr<Signature> *known = s.table.find(key);
    if (C10_UNLIKELY(!known))
        return nullptr;
    (*known)->used = ++s.tick;
    return known->get();
}

Signature *add_signature(const Key &key, std::unique_ptr<Signature> made)
{
    Signatures &s = signatures();
    if (s.table.size() >= signatures_max)
        make_room(s);
    made->used = ++s.tick;
    return s.table.add(key, std::move(made))->get();
}

void forget_signatures()
{
    Signatures &s = signatures();
    s.table.for_each([&](std::unique_ptr<Signature> &known) { s.old.push_back(std::move(known)); });
    s.table.clear();
}

} // namespace dt_pu
