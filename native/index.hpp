// The distinct hypotheses of a sentence, ready to be scored against any reference: for each item, which hypotheses have it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "count.hpp"
#include "mark.hpp"
#include "numbering.hpp"
#include "text.hpp"

namespace mbrace {

class Index {
  public:
    Index(const Options& options, const std::vector<Text>& hypotheses, TextBuffers& buffers)
        : numbering_(options, longest(hypotheses), hypotheses.size()), size_(hypotheses.size()) {
        for (Vector<Item>& newest : buffers.cursors.newest) newest.clear();
        for (std::size_t row = 0; row < size_; ++row) {
            if (row % ROWS == 0) blocks_.push_back(std::make_unique<Block>(options.orders()));
            buffers.segment.read(hypotheses[row], options.whitespace, options.word_order > 0);
            numbering_.number(buffers.segment, buffers.grams);
            add_lengths(buffers.grams, row % ROWS);
            mark(buffers.grams, buffers.cursors, row % ROWS);
            if (row % ROWS == ROWS - 1 || row + 1 == size_) close(*blocks_.back());
        }
    }

    ~Index();
    Index(const Index&) = delete;
    Index& operator=(const Index&) = delete;

    std::size_t size() const { return size_; }
    const Options& options() const { return numbering_.options(); }
    const Numbering& numbering() const { return numbering_; }
    std::size_t blocks() const { return blocks_.size(); }  // of up to ROWS hypotheses each
    std::size_t columns() const {
        std::size_t total = 0;  // of all orders
        for (int n = 0; n < options().orders(); ++n) total += numbering_.items(n);
        return total;
    }
    Rows rows(std::size_t block) const {
        const Block& chosen = *blocks_[block];
        return {chosen.data, chosen.items, chosen.lengths.data(), chosen.inverses.data(), chosen.effective};
    }
    std::size_t bytes() const;

  private:
    struct Block {
        Vector<Column> columns[MAX_ORDERS];
        const Column* data[MAX_ORDERS] = {};
        std::uint32_t items[MAX_ORDERS] = {};
        Vector<float> lengths, inverses;
        float effective[2 * ROWS] = {};

        explicit Block(int orders) : lengths(orders * ROWS), inverses(orders * ROWS) {}
    };

    // One hypothesis, for Marker: sets its bit in the columns of its items.
    struct Row {
        static constexpr bool ADDS_ITEMS = true;

        Numbering& numbering;
        std::uint8_t* bytes[MAX_ORDERS];  // [order]: the byte of column 0 that has the row's bit
        std::uint8_t bit;

        struct Order {
            std::uint8_t* bytes;
            std::uint8_t bit;

            void take(std::size_t, Item item) { bytes[item * sizeof(Column)] |= bit; }
            void remember(Item) {}
            bool has(Item item) const { return bytes[item * sizeof(Column)] & bit; }
        };
        Order order(int n) const { return {bytes[n], bit}; }
        Item another(int n, Item item) { return numbering.next_or_new(n, item); }
    };

    static std::size_t longest(const std::vector<Text>& texts) {
        std::size_t length = 0;
        for (const Text& text : texts) length = std::max(length, text.length);
        return length;
    }

    void add_lengths(const Grams& grams, std::size_t row) {
        Block& block = *blocks_.back();
        for (int n = 0; n < options().orders(); ++n) {
            block.lengths[n * ROWS + row] = static_cast<float>(grams.counts[n]);
            block.inverses[n * ROWS + row] = reciprocal(grams.counts[n]);
        }
        block.effective[row] = effective(grams, 0, options().char_order);
        block.effective[ROWS + row] = effective(grams, options().char_order, options().word_order);
    }

    void mark(const Grams& grams, Cursors& cursors, std::size_t row) {
        Row side{numbering_, {}, static_cast<std::uint8_t>(1u << row % 8)};
        for (int n = 0; n < options().orders(); ++n) {
            Vector<Column>& columns = blocks_.back()->columns[n];
            const std::size_t most = numbering_.items(n) + grams.counts[n];  // so that columns do not move while marking
            if (columns.size() < most) columns.resize(most + most / 2);
            side.bytes[n] = reinterpret_cast<std::uint8_t*>(columns.data()) + byte_of(row);
        }
        Marker<Row>(numbering_, grams, cursors, side).mark();
    }

    // The byte of a column that has a row's bit.
    static std::size_t byte_of(std::size_t row) {
        if constexpr (std::endian::native == std::endian::little) return row / 8;
        return row / 64 * 8 + (7 - row / 8 % 8);
    }

    void close(Block& block) {
        for (int n = 0; n < options().orders(); ++n) {
            block.columns[n][0] = {};
            block.data[n] = block.columns[n].data();
            block.items[n] = static_cast<std::uint32_t>(numbering_.items(n));
        }
    }

    Numbering numbering_;
    std::size_t size_;
    std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace mbrace
