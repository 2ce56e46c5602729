// Head by head, the keys of a row are read in the order of time, then the values: 64 numbers at a time, or 16, or one.
#include "attend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "clones.hpp"
#include "parallel.hpp"

namespace mbrace {
namespace {

constexpr std::size_t FLOATS = 16;  // floats that are added up beside each other
constexpr std::size_t ROWS_PER_TASK = 32;

// Vectors go by reference: by value, calls would depend on the processor.
typedef float Floats16 __attribute__((vector_size(FLOATS * sizeof(float))));
typedef float Floats8 __attribute__((vector_size(FLOATS / 2 * sizeof(float))));
typedef float Floats4 __attribute__((vector_size(FLOATS / 4 * sizeof(float))));

inline void load(Floats16& x, const float* from) { std::memcpy(&x, from, sizeof x); }

template <class Half, class Whole>
inline void add_halves(Half& sum, const Whole& x) {
    Half second;
    std::memcpy(&sum, &x, sizeof sum);
    std::memcpy(&second, reinterpret_cast<const char*>(&x) + sizeof sum, sizeof sum);
    sum += second;
}

inline float total(const Floats16& x) {
    Floats8 half;
    Floats4 quarter;
    add_halves(half, x);
    add_halves(quarter, half);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// For every time, the products of VECTORS * FLOATS numbers of a query with those of a key are added to its weight.
template <std::size_t VECTORS>
inline void add_products(const float* query, const float* keys, const std::size_t* places, std::size_t times,
                         float* weights) {
    Floats16 own[VECTORS];
    for (std::size_t i = 0; i < VECTORS; ++i) load(own[i], query + i * FLOATS);
    for (std::size_t t = 0; t < times; ++t) {
        Floats16 key, sum = {};
        for (std::size_t i = 0; i < VECTORS; ++i) {
            load(key, keys + places[t] + i * FLOATS);
            sum += own[i] * key;
        }
        weights[t] += total(sum);
    }
}

// The mean of VECTORS * FLOATS numbers of the values of all times, by weights whose sum is given.
template <std::size_t VECTORS>
inline void mean_values(const float* values, const std::size_t* places, std::size_t times, const float* weights, float sum,
                        float* out) {
    Floats16 seen[VECTORS] = {};
    for (std::size_t t = 0; t < times; ++t) {
        Floats16 value;
        for (std::size_t i = 0; i < VECTORS; ++i) {
            load(value, values + places[t] + i * FLOATS);
            seen[i] += weights[t] * value;
        }
    }
    for (std::size_t i = 0; i < VECTORS; ++i) {
        seen[i] /= sum;
        std::memcpy(out + i * FLOATS, &seen[i], sizeof seen[i]);
    }
}

// `places`: where the keys of a row are, and `weights`: what it weighs them by, both buffers for all times.
MBRACE_CLONES
void attend_rows(const AttendAsk& ask, std::size_t begin, std::size_t end, std::size_t* places, float* weights) {
    const std::size_t size = ask.size, width = ask.heads * size, times = ask.time + 1;
    const std::size_t fours = size / (4 * FLOATS) * (4 * FLOATS), ones = size / FLOATS * FLOATS;
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (std::size_t row = begin; row < end; ++row) {
        for (std::size_t t = 0; t < ask.time; ++t) {
            places[t] = (t * ask.capacity + static_cast<std::size_t>(ask.row_at[t * ask.row_at_columns + row])) * width;
        }
        places[ask.time] = (ask.time * ask.capacity + row) * width;
        for (std::size_t head = 0; head < ask.heads; ++head) {
            const float* query = ask.newest + row * 3 * width + head * size;
            const float* keys = ask.keys + head * size;
            const float* values = ask.values + head * size;
            float* out = ask.out + row * width + head * size;
            std::fill(weights, weights + times, 0.0f);
            std::size_t d = 0;
            for (; d < fours; d += 4 * FLOATS) add_products<4>(query + d, keys + d, places, times, weights);
            for (; d < ones; d += FLOATS) add_products<1>(query + d, keys + d, places, times, weights);
            for (; d < size; ++d) {
                for (std::size_t t = 0; t < times; ++t) weights[t] += query[d] * keys[places[t] + d];
            }
            const float highest = *std::max_element(weights, weights + times);
            float sum = 0;
            for (std::size_t t = 0; t < times; ++t) sum += weights[t] = std::exp((weights[t] - highest) * scale);
            d = 0;
            for (; d < fours; d += 4 * FLOATS) mean_values<4>(values + d, places, times, weights, sum, out + d);
            for (; d < ones; d += FLOATS) mean_values<1>(values + d, places, times, weights, sum, out + d);
            for (; d < size; ++d) {
                float seen = 0;
                for (std::size_t t = 0; t < times; ++t) seen += weights[t] * values[places[t] + d];
                out[d] = seen / sum;
            }
        }
    }
}

}  // namespace

bool rows_exist(const AttendAsk& ask) {
    for (std::size_t t = 0; t < ask.time; ++t) {
        const std::int32_t* row = ask.row_at + t * ask.row_at_columns;
        const bool known = std::all_of(
            row, row + ask.rows, [&](std::int32_t r) { return r >= 0 && static_cast<std::size_t>(r) < ask.capacity; });
        if (!known) return false;
    }
    return true;
}

void attend(const AttendAsk& ask, int threads) {
    const std::size_t width = ask.heads * ask.size, now = ask.time * ask.capacity * width, times = ask.time + 1;
    const std::size_t tasks = (ask.rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    parallel(tasks, threads, [&](int, std::size_t task) {
        const std::size_t begin = task * ROWS_PER_TASK, end = std::min(begin + ROWS_PER_TASK, ask.rows);
        for (std::size_t row = begin; row < end; ++row) {
            std::memcpy(ask.keys + now + row * width, ask.newest + (3 * row + 1) * width, width * sizeof(float));
            std::memcpy(ask.values + now + row * width, ask.newest + (3 * row + 2) * width, width * sizeof(float));
        }
        std::vector<std::size_t> places(times);
        std::vector<float> weights(times);
        attend_rows(ask, begin, end, places.data(), weights.data());
    });
}

}  // namespace mbrace
