// The hypotheses of an index that are scored: blocks as they are, or a few of them with a byte instead of a bit each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "count.hpp"
#include "index.hpp"

namespace mbrace {

// One for each thread, used again for every race.
class Survivors {
  public:
    // Bytes are worth their making where they save more: that costs some instructions a column, and saves about two
    // hundred times as many for each reference.
    void choose(const Index& index, const std::int64_t* survivors, std::size_t count, std::size_t references, Spread spread) {
        index_ = &index;
        few_ = count <= FEW && index.columns() < 200 * references;
        groups_.assign(few_ ? 1 : index.blocks(), 0);
        for (std::size_t s = 0; s < count; ++s) {
            const std::size_t row = few_ ? s : survivors[s];
            groups_[row / size()] |= 1u << row % size() / LANES;
        }
        if (few_) make_few(survivors, count, spread);
    }

    bool few() const { return few_; }
    std::size_t size() const { return few_ ? FEW : ROWS; }  // of a block
    std::size_t blocks() const { return groups_.size(); }
    std::uint32_t groups(std::size_t block) const { return groups_[block]; }  // those with a survivor
    Rows rows(std::size_t block) const {
        if (!few_) return index_->rows(block);
        return {data_, items_, lengths_, inverses_, effective_};
    }

  private:
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
        std::fill(lengths_, lengths_ + orders * FEW, 0.0f);
        std::fill(inverses_, inverses_ + orders * FEW, 0.0f);
        std::fill(effective_, effective_ + 2 * FEW, 0.0f);
        for (std::size_t block = 0; block < index_->blocks(); ++block) {
            const Rows rows = index_->rows(block);
            std::uint16_t chosen[FEW];
            std::fill(chosen, chosen + FEW, std::uint16_t{ROWS});
            for (std::size_t s = 0; s < count; ++s) {
                if (static_cast<std::size_t>(survivors[s]) / ROWS != block) continue;
                const std::size_t row = survivors[s] % ROWS;
                chosen[s] = static_cast<std::uint16_t>(row);
                for (int n = 0; n < orders; ++n) {
                    lengths_[n * FEW + s] = rows.lengths[n * ROWS + row];
                    inverses_[n * FEW + s] = rows.inverses[n * ROWS + row];
                }
                effective_[s] = rows.effective[row];
                effective_[FEW + s] = rows.effective[ROWS + row];
            }
            if (std::all_of(chosen, chosen + FEW, [](std::uint16_t row) { return row == ROWS; })) continue;
            for (int n = 0; n < orders; ++n) spread(rows.columns[n], rows.items[n], chosen, const_cast<Column*>(data_[n]));
        }
    }

    const Index* index_ = nullptr;
    bool few_ = false;
    std::vector<std::uint32_t> groups_;
    Vector<Column> columns_;
    const Column* data_[MAX_ORDERS] = {};
    std::uint32_t items_[MAX_ORDERS] = {};
    float lengths_[MAX_ORDERS * FEW], inverses_[MAX_ORDERS * FEW], effective_[2 * FEW];
};

}  // namespace mbrace
