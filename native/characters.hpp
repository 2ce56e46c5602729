// Numbering the n-grams of characters exactly, without hashing strings.
//
// A text is read by an automaton. Its *state* is the longest n-gram of up to six code points that ends here and that the
// hypotheses have, and knows the items of all n-grams that end here: itself and its endings. A state and one code point
// more tell the next state. Where nothing known goes on with that code point, the state's *ending* (itself without its
// first code point) is asked, and so on: what a text does not share with the hypotheses costs a step or two a code point.
//
// Full states, those of six code points, lie in memory in the order in which they were first met: mostly the one behind is
// the one that follows. Where texts share a passage, as samples of one model do nearly everywhere, numbering a position is
// one comparison, and no position waits for a load of the one before it. Elsewhere a table leads on.
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
    // `expected`: about how many full states there will be.
    Characters(int order, std::size_t expected)
        : order_(order), most_(std::min(order, WINDOW)), full_(2, NONE), short_(2, NONE), full_links_(1), short_links_(1) {
        if (order == 0) return;
        full_.reserve(expected);
        full_links_.reserve(expected);
        grow(std::bit_ceil(expected * 4 + 64));
    }

    // `Insert`: hypotheses number what is new. Otherwise (references) what is not there stays 0, and nothing changes.
    template <bool Insert>
    void number(const Segment& segment, Items& items, Grams& grams) {
        const std::size_t length = segment.length;
        for (int n = 0; n < order_; ++n) grams.counts[n] = length > static_cast<std::size_t>(n) ? length - n : 0;
        if (grams.states.size() < length) grams.states.resize(length);
        const std::uint32_t* points = segment.points.data();
        std::uint32_t* states = grams.states.data();
        std::uint32_t id = NOTHING;
        int fresh = 0;  // how many n-grams that end here are new
        const State* state = &at(id);
        for (std::size_t i = 0; i < length; ++i) {
            if (state[1].last == (points[i] | BEHIND)) {
                ++id, ++state;
                fresh = 0;
            } else {
                id = step<Insert>(id, points[i], i, items, fresh);
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
    static constexpr std::uint32_t SHORT = State::SHORT, NOTHING = SHORT;  // the state of no code point at all
    static constexpr std::uint32_t BEHIND = 1u << 31;

    struct Link {
        std::uint32_t ending, context;  // itself without its first code point; without its last (and at most five)
    };
    struct Slot {
        std::uint32_t tag, id;  // half of a hash; NOTHING: free
    };
    static constexpr State NONE{{}, END, 0};  // follows nothing

    const State& at(std::uint32_t id) const { return (id & SHORT ? short_.data() : full_.data())[id & ~SHORT]; }
    State& at(std::uint32_t id) { return const_cast<State&>(std::as_const(*this).at(id)); }
    const Link& link(std::uint32_t id) const { return (id & SHORT ? short_links_.data() : full_links_.data())[id & ~SHORT]; }
    std::uint32_t ending(std::uint32_t id) const { return link(id).ending; }

    // The state that follows a context, a state that is not full, on a symbol; NOTHING if there is none. A slot proposes,
    // the state itself decides.
    std::uint32_t next(std::uint32_t context, std::uint32_t symbol) const {
        const std::uint64_t hash = mix(pair_key(context, symbol));
        const auto tag = static_cast<std::uint32_t>(hash);
        for (std::size_t place = hash >> shift_;; place = (place + 1) & (next_.size() - 1)) {
            const Slot slot = next_[place];
            if (slot.id == NOTHING) return NOTHING;
            if (slot.tag == tag && link(slot.id).context == context && (at(slot.id).last & ~BEHIND) == symbol) return slot.id;
        }
    }

    void set_next(std::uint32_t context, std::uint32_t symbol, std::uint32_t id) {
        const std::uint64_t hash = mix(pair_key(context, symbol));
        std::size_t place = hash >> shift_;
        while (next_[place].id != NOTHING) place = (place + 1) & (next_.size() - 1);
        next_[place] = {static_cast<std::uint32_t>(hash), id};
    }

    void grow(std::size_t slots) {
        next_.assign(slots, {0, NOTHING});
        shift_ = 64 - std::countr_zero(slots);
        for (std::size_t i = 1; i < full_links_.size(); ++i) {
            set_next(full_links_[i].context, full_[i].last & ~BEHIND, static_cast<std::uint32_t>(i));
        }
        for (std::size_t i = 1; i < short_links_.size(); ++i) {
            set_next(short_links_[i].context, short_[i].last, static_cast<std::uint32_t>(i) | SHORT);
        }
    }

    // The state after `symbol`, which is at position `i` of its text. `fresh`: see number().
    template <bool Insert>
    std::uint32_t step(std::uint32_t id, std::uint32_t symbol, std::size_t i, Items& items, int& fresh) {
        const std::uint32_t follow = at(id).follow;
        if (follow != 0 && (at(follow).last & ~BEHIND) == symbol) {
            fresh = 0;
            return follow;
        }
        std::uint32_t context = id & SHORT ? id : ending(id);
        std::uint32_t found = NOTHING;
        if constexpr (!Insert) {
            while ((found = next(context, symbol)) == NOTHING && context != NOTHING) context = ending(context);
            return found;
        }
        // An n-gram that was new at the position before has not been followed by anything: no need to look.
        int skip = id & SHORT ? fresh : fresh - 1;
        std::uint32_t missing[WINDOW];
        fresh = 0;
        for (;; context = ending(context)) {
            if (skip-- <= 0 && (found = next(context, symbol)) != NOTHING) break;
            missing[fresh++] = context;
            if (context == NOTHING) break;
        }
        // A new n-gram ends in a shorter one, so the shortest comes first.
        const int longest = static_cast<int>(std::min<std::size_t>(i + 1, most_));
        for (int k = fresh; k > 0;) {
            --k;
            found = add(missing[k], symbol, found, longest - k, items);
        }
        follows(id, found);
        return found;
    }

    std::uint32_t add(std::uint32_t context, std::uint32_t symbol, std::uint32_t ending, int length, Items& items) {
        const bool full = length == most_;
        Vector<State>& states = full ? full_ : short_;
        Vector<Link>& links = full ? full_links_ : short_links_;
        const auto id = static_cast<std::uint32_t>(links.size()) | (full ? 0 : SHORT);
        State state = at(ending);
        state.items[length - 1] = items.add(length - 1);
        state.last = symbol;
        state.follow = 0;
        states.back() = state;
        states.push_back(NONE);
        links.push_back({ending, context});
        if (8 * (full_links_.size() + short_links_.size()) > 5 * next_.size()) {
            grow(2 * next_.size());
        } else {
            set_next(context, symbol, id);
        }
        return id;
    }

    // Remembers what followed: in the place behind, or as the first of others.
    void follows(std::uint32_t id, std::uint32_t next) {
        if (!(id & SHORT) && next == id + 1) {
            full_[next].last |= BEHIND;
        } else if (at(id).follow == 0) {
            at(id).follow = next;
        }
    }

    // Orders beyond 6, one by one, from the id of the n-gram one shorter that begins at a position.
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
            const Longer found = id == 0 ? Longer{0, 0} : longer<Insert>(id, segment.points[i + order], order, items);
            id = found.id;
            grams.items[order][i] = found.item;
        }
    }

    template <bool Insert>
    Longer longer(std::uint32_t prefix, std::uint32_t symbol, int order, Items& items) {
        const std::uint64_t key = pair_key(prefix, symbol);
        if (const Longer* found = longer_[order].find(key)) return *found;
        if constexpr (Insert) {
            const Item item = items.add(order);
            return *longer_[order].insert(key, {item, item});
        }
        return {0, 0};
    }

    int order_, most_;
    Vector<State> full_, short_;             // the last of each is none, and so is the first full one
    Vector<Link> full_links_, short_links_;  // by state
    Vector<Slot> next_;                      // by (context, code point)
    int shift_ = 63;
    Table<Longer> longer_[MAX_ORDERS];
};

}  // namespace mbrace
