// The table of signatures: from a call's key to the number that the session knows it by.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "internal.h"

namespace dt_pu
{
namespace
{

/* Below libdtorch's own bound, so that dropping is ours to do: it drops none whose number is known.
 */
constexpr size_t signatures_max = 12000;

using Table = std::unordered_map<std::string, std::unique_ptr<Signature>, KeyHash, std::equal_to<>>;

/* Recorder held. */
struct Signatures {
    Table table;
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
    for (auto &entry : s.table)
        used.push_back(entry.second->used);
    auto third = used.begin() + (ptrdiff_t)(used.size() / 3);
    std::nth_element(used.begin(), third, used.end());
    const uint64_t oldest = *third;
    s.old.clear();
    for (auto at = s.table.begin(); at != s.table.end();) {
        if (at->second->used >= oldest) {
            ++at;
            continue;
        }
        numbers.push_back(at->second->number);
        s.old.push_back(std::move(at->second));
        at = s.table.erase(at);
    }
    /* Calls that differ only here are one signature there. */
    std::unordered_set<uint32_t> kept;
    for (auto &entry : s.table)
        kept.insert(entry.second->number);
    numbers.erase(std::remove_if(numbers.begin(), numbers.end(),
                                 [&](uint32_t number) { return kept.count(number) != 0; }),
                  numbers.end());
    must(dt_signature_drop(session(), numbers.data(), (uint32_t)numbers.size(), &err), err);
}

} // namespace

Signature *find_signature(const Key &key)
{
    Signatures &s = signatures();
    auto known = s.table.find(key.view());
    if (C10_UNLIKELY(known == s.table.end()))
        return nullptr;
    known->second->used = ++s.tick;
    return known->second.get();
}

Signature *add_signature(std::string key, std::unique_ptr<Signature> made)
{
    Signatures &s = signatures();
    if (s.table.size() >= signatures_max)
        make_room(s);
    made->used = ++s.tick;
    return s.table.emplace(std::move(key), std::move(made)).first->second.get();
}

void forget_signatures()
{
    Signatures &s = signatures();
    for (auto &entry : s.table)
        s.old.push_back(std::move(entry.second));
    s.table.clear();
}

} // namespace dt_pu
