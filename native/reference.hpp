// A reference in the numbering of an index, ready for the counting loop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "count.hpp"
#include "index.hpp"
#include "mark.hpp"

namespace mbrace {

// One reference, as Marker sees it: a list of its items. Used again for the next one.
class Looked {
  public:
    static constexpr bool ADDS = false;

    void look_up(const Index& index, const Text& text, Desk& desk) {
        const Options& options = index.options();
        desk.segment.read(text, options.whitespace, options.word_order > 0);
        index.numbering().look_up(desk.segment, desk.grams);
        if (++desk.text == 0) {  // all numbers are used up
            for (auto& seen : desk.seen) std::fill(seen.begin(), seen.end(), 0);
            desk.text = 1;
        }
        text_ = desk.text;
        const std::uint32_t chars = static_cast<std::uint32_t>(desk.segment.length);
        const std::uint32_t words = static_cast<std::uint32_t>(desk.segment.words.size());
        for (int n = 0; n < options.orders(); ++n) {
            const std::uint32_t most = n < options.char_order ? chars : words;
            counts_[n] = (most + PADDING - 1) / PADDING * PADDING;
            if (items_[n].size() < counts_[n]) items_[n].resize(counts_[n]);
            std::fill(items_[n].begin() + desk.grams.counts[n], items_[n].begin() + counts_[n], 0);  // no leftovers
            data_[n] = items_[n].data();
            if (desk.seen[n].size() < index.numbering().items(n)) desk.seen[n].resize(index.numbering().items(n) * 2);
            seen_[n] = desk.seen[n].data();
            largest_[n] = static_cast<std::uint32_t>(index.numbering().items(n) - 1);
            lengths_[n] = static_cast<float>(desk.grams.counts[n]);
            inverses_[n] = reciprocal(desk.grams.counts[n]);
        }
        effective_[0] = effective(desk.grams, 0, options.char_order);
        effective_[1] = effective(desk.grams, options.char_order, options.word_order);
        next_ = &index.numbering();
        Marker<Looked>(index.numbering(), desk.grams, desk.cursors, *this).mark();
    }

    Reference view() const { return {data_, counts_, lengths_, inverses_, effective_, largest_}; }

    struct Order {
        Item* items;
        std::uint8_t* seen;
        std::uint8_t text;

        void take(std::size_t i, Item item) { items[i] = item; }
        void remember(Item item) { seen[item] = text; }
        bool has(Item item) const { return seen[item] == text; }
    };
    Order order(int n) const { return {data_[n], seen_[n], text_}; }
    Item another(int n, Item item) const { return next_->next(n)[item]; }

  private:
    Vector<Item> items_[MAX_ORDERS];
    Item* data_[MAX_ORDERS];
    std::uint8_t* seen_[MAX_ORDERS];
    std::uint8_t text_;
    const Numbering* next_;
    std::uint32_t counts_[MAX_ORDERS], largest_[MAX_ORDERS];
    float lengths_[MAX_ORDERS], inverses_[MAX_ORDERS], effective_[2];
};

}  // namespace mbrace
