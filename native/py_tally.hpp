// A Tally as Python sees it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "python.hpp"
#include "tally.hpp"

namespace mbrace {

template <class Number>
using UtilityTable = nb::ndarray<const Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr const char* NOT_ONE_EACH = "counts and weights: expected one for each distinct pseudo-reference";

// A Tally, and what owns the buffers of strings that it reads again later.
struct PyTally : Tally {
    using Tally::Tally;
    std::vector<nb::object> buffers;
    nb::list distinct_hypotheses;

    explicit PyTally(nb::handle texts) {
        const Strings given(texts);
        expect_strings(2 * given.texts.size());  // as many pseudo-references, as a rule
        for (std::size_t i = 0; i < given.texts.size(); ++i) {
            if (!add_hypothesis(given.texts[i])) continue;
            buffers.push_back(nb::borrow(given.buffer(i)));
            distinct_hypotheses.append(given.owner[i]);
        }
    }

    // Returns the row and column of the first value that is not finite; nothing is added then.
    template <class Number>
    std::optional<std::pair<std::size_t, std::size_t>> enter(UtilityTable<Number> table) {
        if (table.shape(1) != columns()) throw nb::value_error("table: one column per distinct pseudo-reference");
        const std::size_t index = first_not_finite(table.data(), table.size());
        if (index < table.size()) return std::pair{index / columns(), index % columns()};
        Tally::enter(table.data(), table.shape(0));
        return std::nullopt;
    }

    void leave_out(std::size_t row, std::size_t column) {
        if (row >= alive().size() || column >= columns()) throw nb::index_error("leave_out: no such row or column");
        Tally::leave_out(row, column);
    }

    nb::list draw(nb::handle texts) {
        const Strings drawn(texts);
        nb::list first_drawn;
        for (std::size_t i = 0; i < drawn.texts.size(); ++i) {
            if (!Tally::draw(drawn.texts[i])) continue;
            buffers.push_back(nb::borrow(drawn.buffer(i)));
            first_drawn.append(drawn.owner[i]);
        }
        return first_drawn;
    }

    // Returns the row and column of the first value that is not finite; nothing is added then.
    template <class Number>
    std::optional<std::pair<std::size_t, std::size_t>> add(UtilityTable<Number> table) {
        const std::size_t columns = table.shape(1);
        if (table.shape(0) != alive().size()) throw nb::value_error("table: one row per hypothesis that is alive");
        if (this->columns() + columns > counts().size()) throw nb::value_error("table: more columns than were drawn");
        const std::size_t index = first_not_finite(table.data(), table.size());
        if (index < table.size()) return std::pair{index / columns, index % columns};
        Tally::add(table.data(), columns);
        return std::nullopt;
    }

    void keep(Integers rows) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const std::int64_t least = i ? rows.data()[i - 1] + 1 : 0;
            if (rows.data()[i] < least || rows.data()[i] >= static_cast<std::int64_t>(alive().size())) {
                throw nb::index_error("keep: expected growing indexes into the alive hypotheses");
            }
        }
        Tally::keep({rows.data(), rows.data() + rows.size()});
    }

    const double* checked(const std::optional<Weights>& weights) const {
        if (weights && weights->size() != columns()) throw nb::value_error(NOT_ONE_EACH);
        return weights ? weights->data() : nullptr;
    }

    Numbers<double> expected_utilities(std::optional<Weights> weights) { return numbers_of(expected(checked(weights))); }

    nb::object table(std::optional<Weights> weights) {
        fill_left_out(checked(weights));
        return with_utilities([&](const auto& known) {
            using Number = std::remove_cvref_t<decltype(known[0])>;
            auto copy = make_table<Number>(alive().size(), columns(), true);
            std::copy_n(known.data(), copy.size(), copy.data());
            return nb::cast(copy);
        });
    }
};

}  // namespace mbrace
