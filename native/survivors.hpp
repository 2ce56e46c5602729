// The hypotheses of an index that are still scored: the blocks of the index, or, for a few hypotheses, columns of their own
// that have a byte instead of a bit for each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "index.hpp"

namespace mbrace {

// One per thread, reused for every sentence.
class Survivors {
  public:
    void choose(const Index& index, const std::int64_t* survivors, std::size_t count, std::size_t references,
                Spread spread) {
        index_ = &index;
        few_ = count <= FEW_ROWS && index.columns() < MAX_COLUMNS * references;
        groups_.assign(few_ ? 1 : index.blocks(), 0);
        for (std::size_t s = 0; s < count; ++s) {
            const std::size_t row = few_ ? s : survivors[s];
            groups_[row / size()] |= 1u << row % size() / LANES;
        }
        if (few_) make_few(survivors, count, spread);
    }

    bool few() const { return few_; }
    std::size_t size() const { return few_ ? FEW_ROWS : ROWS; }  // rows of a block
    std::size_t blocks() const { return groups_.size(); }
    std::uint32_t groups(std::size_t block) const { return groups_[block]; }  // bit g: rows 8 g to 8 g + 7 have a survivor
    Rows rows(std::size_t block) const {
        if (!few_) return index_->rows(block);
        return {data_, items_, lengths_, inverses_, effective_};
    }

  private:
    // Columns of bytes are made only if the index has fewer columns than this per reference: making one column takes a few
    // instructions, and for each reference the columns save about this many times as much.
    static constexpr std::size_t MAX_COLUMNS = 200;

    void make_few(const std::int64_t* survivors, std::size_t count, Spread spread) {
        const int orders = index_->options().orders();
        std::size_t all = 0;
        for (int n = 0; n < orders; ++n) all += items_[n] = static_cast<std::uint32_t>(index_->numbering().items(n));
        columns_.assign(all, {});
        Column* at = columns_.data();
        for (int n = 0; n < orders; ++n) {
            data_[n] = at;
            at += items_[n];
        }
        std::fill(lengths_, lengths_ + orders * FEW_ROWS, 0.0f);
        std::fill(inverses_, inverses_ + orders * FEW_ROWS, 0.0f);
        std::fill(effective_, effective_ + 2 * FEW_ROWS, 0.0f);
        for (std::size_t block = 0; block < index_->blocks(); ++block) {
            const Rows rows = index_->rows(block);
            std::uint16_t chosen[FEW_ROWS];
            std::fill(chosen, chosen + FEW_ROWS, std::uint16_t{ROWS});
            for (std::size_t s = 0; s < count; ++s) {
                if (static_cast<std::size_t>(survivors[s]) / ROWS != block) continue;
                const std::size_t row = survivors[s] % ROWS;
                chosen[s] = static_cast<std::uint16_t>(row);
                for (int n = 0; n < orders; ++n) {
                    lengths_[n * FEW_ROWS + s] = rows.lengths[n * ROWS + row];
                    inverses_[n * FEW_ROWS + s] = rows.inverses[n * ROWS + row];
                }
                effective_[s] = rows.effective[row];
                effective_[FEW_ROWS + s] = rows.effective[ROWS + row];
            }
            if (std::all_of(chosen, chosen + FEW_ROWS, [](std::uint16_t row) { return row == ROWS; })) continue;
            for (int n = 0; n < orders; ++n) spread(rows.columns[n], rows.items[n], chosen, const_cast<Column*>(data_[n]));
        }
    }

    const Index* index_ = nullptr;
    bool few_ = false;
    std::vector<std::uint32_t> groups_;
    Vector<Column> columns_;
    const Column* data_[MAX_ORDERS] = {};
    std::uint32_t items_[MAX_ORDERS] = {};
    float lengths_[MAX_ORDERS * FEW_ROWS], inverses_[MAX_ORDERS * FEW_ROWS], effective_[2 * FEW_ROWS];
};

}  // namespace mbrace
