// Numbering the n-grams of characters exactly, without hashing strings.
//
// A text is read by an automaton. After each code point, its *state* is the longest n-gram of up to six code points that
// ends at this position and occurs in the hypotheses. A state stores the items of all n-grams that end there: of itself and
// of its endings. The state and the next code point determine the next state. If no hypothesis continues the state with
// this code point, the search goes on from the state's *ending* (the state without its first code point), and so on: a
// position where a text differs from all hypotheses costs a step or two.
//
// States of the full length (six code points) are stored in the order in which they were first met, so the next state is
// usually the next one in memory. Where texts share a passage, as samples of one model do nearly everywhere, numbering a
// position is a single comparison, and no position waits for a load of the one before it. Elsewhere a hash table from
// (context, code point) finds the next state.
//
// Example: the hypothesis "abcab" with character order 2, so that full states have two code points. F: full, S: short.
//
//   read   state       how it is found                                      items: order 1, order 2
//   a      S1 = "a"    new                                                  1, -
//   b      F1 = "ab"   new, and so is its ending S2 = "b"                   2, 1
//   c      F2 = "bc"   new, and so is its ending S3 = "c"; F2 is next to F1 3, 2
//   a      F3 = "ca"   new, its ending S1 is known; F3 is next to F2        1, 3
//   b      F1          in the table, as S1 (the ending of F3) and "b";      2, 1
//                      F3 remembers F1 as its other successor
//
// The reference "bcab" then reads S2 and F2 from the table, F3 because it is next to F2 in memory and ends in "a", and F1
// because it is F3's other successor. In "bcxab" nothing ends in "x": the state there is NOTHING, all of whose items are 0.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "items.hpp"
#include "table.hpp"
#include "text.hpp"

namespace mbrace {

class Characters {
  public:
    // `expected`: a guess of the number of full states.
    Characters(int order, std::size_t expected)
        : order_(order), full_length_(std::min(order, WINDOW)), full_(2, NONE), short_(2, NONE), full_links_(1),
          short_links_(1) {
        if (order == 0) return;
        full_.reserve(expected);
        full_links_.reserve(expected);
        grow(std::bit_ceil(expected * 4 + 64));
    }

    // `Insert`: new n-grams get a number (hypotheses); otherwise they get item 0 and nothing is changed (references).
    template <bool Insert>
    void number(const Segment& segment, Items& items, Grams& grams) {
        const std::size_t length = segment.length;
        for (int n = 0; n < order_; ++n) grams.counts[n] = length > static_cast<std::size_t>(n) ? length - n : 0;
        if (grams.states.size() < length) grams.states.resize(length);
        const std::uint32_t* points = segment.points.data();
        std::uint32_t* states = grams.states.data();
        std::uint32_t id = NOTHING;
        int new_grams = 0;  // of those that end at this position
        const State* state = &at(id);
        for (std::size_t i = 0; i < length; ++i) {
            if (state[1].last == (points[i] | FOLLOWS_PREVIOUS)) {
                ++id, ++state;
                new_grams = 0;
            } else {
                id = step<Insert>(id, points[i], i, items, new_grams);
                state = &at(id);
            }
            states[i] = id;
        }
        grams.known[0] = full_.data();
        grams.known[1] = short_.data();
        for (int n = WINDOW; n < order_; ++n) extend<Insert>(segment, items, grams, n);
    }

    std::size_t bytes() const {
        std::size_t total = sizeof(Slot) * next_.size() + (sizeof(State) + sizeof(Link)) * (full_.size() + short_.size());
        for (const auto& table : longer_) total += table.bytes();
        return total;
    }

  private:
    static constexpr std::uint32_t SHORT = State::SHORT;
    static constexpr std::uint32_t NOTHING = SHORT;              // the id of the state of no code points
    static constexpr std::uint32_t FOLLOWS_PREVIOUS = 1u << 31;  // in State::last

    struct Link {
        std::uint32_t ending;   // the state without its first code point
        std::uint32_t context;  // the state without its last code point
    };
    struct Slot {
        std::uint32_t tag;  // half of the hash
        std::uint32_t id;   // of the state; NOTHING: the slot is free
    };
    static constexpr State NONE{{}, END, 0};  // its last code point equals no text's

    const State& at(std::uint32_t id) const { return (id & SHORT ? short_.data() : full_.data())[id & ~SHORT]; }
    State& at(std::uint32_t id) { return const_cast<State&>(std::as_const(*this).at(id)); }
    const Link& link(std::uint32_t id) const {
        return (id & SHORT ? short_links_.data() : full_links_.data())[id & ~SHORT];
    }
    std::uint32_t ending(std::uint32_t id) const { return link(id).ending; }

    // The state that is `context` (a short state) and a code_point; NOTHING if there is none. A slot's tag only suggests a
    // state; its link and last code point decide.
    std::uint32_t next(std::uint32_t context, std::uint32_t code_point) const {
        const std::uint64_t hash = mix(pair_key(context, code_point));
        const auto tag = static_cast<std::uint32_t>(hash);
        for (std::size_t slot = hash >> shift_;; slot = (slot + 1) & (next_.size() - 1)) {
            const Slot& entry = next_[slot];
            if (entry.id == NOTHING) return NOTHING;
            const bool same_tag = entry.tag == tag;
            if (same_tag && link(entry.id).context == context && (at(entry.id).last & ~FOLLOWS_PREVIOUS) == code_point) {
                return entry.id;
            }
        }
    }

    void set_next(std::uint32_t context, std::uint32_t code_point, std::uint32_t id) {
        const std::uint64_t hash = mix(pair_key(context, code_point));
        std::size_t slot = hash >> shift_;
        while (next_[slot].id != NOTHING) slot = (slot + 1) & (next_.size() - 1);
        next_[slot] = {static_cast<std::uint32_t>(hash), id};
    }

    void grow(std::size_t slots) {
        next_.assign(slots, {0, NOTHING});
        shift_ = 64 - std::countr_zero(slots);
        for (std::size_t i = 1; i < full_links_.size(); ++i) {
            set_next(full_links_[i].context, full_[i].last & ~FOLLOWS_PREVIOUS, static_cast<std::uint32_t>(i));
        }
        for (std::size_t i = 1; i < short_links_.size(); ++i) {
            set_next(short_links_[i].context, short_[i].last, static_cast<std::uint32_t>(i) | SHORT);
        }
    }

    // The state after `code_point`, which is at position `i` of its text. `new_grams`: as in number(), in and out.
    template <bool Insert>
    std::uint32_t step(std::uint32_t id, std::uint32_t code_point, std::size_t i, Items& items, int& new_grams) {
        const std::uint32_t follow = at(id).follow;
        if (follow != 0 && (at(follow).last & ~FOLLOWS_PREVIOUS) == code_point) {
            new_grams = 0;
            return follow;
        }
        std::uint32_t context = id & SHORT ? id : ending(id);
        std::uint32_t found = NOTHING;
        if constexpr (!Insert) {
            while ((found = next(context, code_point)) == NOTHING && context != NOTHING) context = ending(context);
            return found;
        }
        // An n-gram that was new at the previous position has never been continued: no need to look it up. (If the state is
        // full, it is one of the new n-grams, but its ending is the first context.)
        int skip = id & SHORT ? new_grams : new_grams - 1;
        std::uint32_t missing[WINDOW];
        new_grams = 0;
        for (;; context = ending(context)) {
            if (skip-- <= 0 && (found = next(context, code_point)) != NOTHING) break;
            missing[new_grams++] = context;
            if (context == NOTHING) break;
        }
        // A new n-gram's ending must exist before it, so the shortest is added first.
        const int longest = static_cast<int>(std::min<std::size_t>(i + 1, full_length_));
        for (int k = new_grams; k > 0;) {
            --k;
            found = add(missing[k], code_point, found, longest - k, items);
        }
        remember_successor(id, found);
        return found;
    }

    std::uint32_t add(std::uint32_t context, std::uint32_t code_point, std::uint32_t ending, int length, Items& items) {
        const bool full = length == full_length_;
        Vector<State>& states = full ? full_ : short_;
        Vector<Link>& links = full ? full_links_ : short_links_;
        const auto id = static_cast<std::uint32_t>(links.size()) | (full ? 0 : SHORT);
        State state = at(ending);
        state.items[length - 1] = items.add(length - 1);
        state.last = code_point;
        state.follow = 0;
        states.back() = state;
        states.push_back(NONE);
        links.push_back({ending, context});
        if (8 * (full_links_.size() + short_links_.size()) > 5 * next_.size()) {
            grow(2 * next_.size());
        } else {
            set_next(context, code_point, id);
        }
        return id;
    }

    // Remembers that state `next` came after state `id`: as its successor in memory, or as its one other successor.
    void remember_successor(std::uint32_t id, std::uint32_t next) {
        if (!(id & SHORT) && next == id + 1) {
            full_[next].last |= FOLLOWS_PREVIOUS;
        } else if (at(id).follow == 0) {
            at(id).follow = next;
        }
    }

    // An order beyond 6: at each position, from the id of the n-gram that begins there and is one code point shorter.
    template <bool Insert>
    void extend(const Segment& segment, Items& items, Grams& grams, int order) {
        if (grams.items[order].size() < segment.length) grams.items[order].resize(segment.length);
        if (order == WINDOW) {
            if (grams.longer_ids.size() < segment.length) grams.longer_ids.resize(segment.length);
            for (std::size_t i = 0; i < grams.counts[WINDOW - 1]; ++i) {
                const std::uint32_t id = grams.states[i + WINDOW - 1];
                grams.longer_ids[i] = id & SHORT ? 0 : id;
            }
        }
        for (std::size_t i = 0; i < grams.counts[order]; ++i) {
            std::uint32_t& id = grams.longer_ids[i];
            const LongerGram found =
                id == 0 ? LongerGram{0, 0} : longer<Insert>(id, segment.points[i + order], order, items);
            id = found.id;
            grams.items[order][i] = found.item;
        }
    }

    template <bool Insert>
    LongerGram longer(std::uint32_t prefix, std::uint32_t code_point, int order, Items& items) {
        const std::uint64_t key = pair_key(prefix, code_point);
        if (const LongerGram* found = longer_[order].find(key)) return *found;
        if constexpr (Insert) {
            const Item item = items.add(order);
            return *longer_[order].insert(key, {item, item});
        }
        return {0, 0};
    }

    int order_, full_length_;
    Vector<State> full_, short_;             // by id; NONE after the last one, and as full state 0
    Vector<Link> full_links_, short_links_;  // by id
    Vector<Slot> next_;                      // hash table by (context, code point)
    int shift_ = 63;
    Table<LongerGram> longer_[MAX_ORDERS];
};

}  // namespace mbrace
