// A reference in the numbering of an index, ready for the counting loop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "count.hpp"
#include "index.hpp"
#include "mark.hpp"

namespace mbrace {

// One reference, for Marker: collects the list of its items. The object is reused for the next reference.
class IndexedReference {
  public:
    static constexpr bool ADDS_ITEMS = false;

    void look_up(const Index& index, const Text& text, TextBuffers& buffers) {
        const Options& options = index.options();
        buffers.segment.read(text, options.whitespace, options.word_order > 0);
        index.numbering().look_up(buffers.segment, buffers.grams);
        if (++buffers.text == 0) {  // after 255 references, numbers begin again
            for (auto& seen : buffers.seen) std::fill(seen.begin(), seen.end(), 0);
            buffers.text = 1;
        }
        text_ = buffers.text;
        const std::uint32_t chars = static_cast<std::uint32_t>(buffers.segment.length);
        const std::uint32_t words = static_cast<std::uint32_t>(buffers.segment.words.size());
        for (int n = 0; n < options.orders(); ++n) {
            const std::uint32_t most = n < options.char_order ? chars : words;
            counts_[n] = (most + ITEM_PADDING - 1) / ITEM_PADDING * ITEM_PADDING;
            if (items_[n].size() < counts_[n]) items_[n].resize(counts_[n]);
            // What is left of the last reference:
            std::fill(items_[n].begin() + buffers.grams.counts[n], items_[n].begin() + counts_[n], 0);
            data_[n] = items_[n].data();
            const std::size_t known = index.numbering().items(n);
            if (buffers.seen[n].size() < known) buffers.seen[n].resize(known * 2);
            seen_[n] = buffers.seen[n].data();
            largest_[n] = static_cast<std::uint32_t>(known - 1);
            lengths_[n] = static_cast<float>(buffers.grams.counts[n]);
            inverses_[n] = reciprocal(buffers.grams.counts[n]);
        }
        effective_[0] = effective(buffers.grams, 0, options.char_order);
        effective_[1] = effective(buffers.grams, options.char_order, options.word_order);
        numbering_ = &index.numbering();
        Marker<IndexedReference>(index.numbering(), buffers.grams, buffers.cursors, *this).mark();
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
    Item another(int n, Item item) const { return numbering_->next(n)[item]; }

  private:
    Vector<Item> items_[MAX_ORDERS];
    Item* data_[MAX_ORDERS];
    std::uint8_t* seen_[MAX_ORDERS];
    std::uint8_t text_;
    const Numbering* numbering_;
    std::uint32_t counts_[MAX_ORDERS], largest_[MAX_ORDERS];
    float lengths_[MAX_ORDERS], inverses_[MAX_ORDERS], effective_[2];
};

}  // namespace mbrace
