// Attention of the newest position of every row of a search to the past of that row, for models on a CPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mbrace {

// Keys and values stay where they were stored, [time][row of that time][heads * size]; `row_at` says which row of an
// earlier time a row goes back to. So the paths of a beam, which share most of their past, are never copied.
struct AttendAsk {
    const float* newest;         // [rows][3][heads * size]: query, key and value
    float* keys;                 // [room][capacity][heads * size]; those of `time` are written
    float* values;               // the same
    const std::int32_t* row_at;  // [room][row_at_columns], below `capacity`
    float* out;                  // [rows][heads * size]
    std::size_t rows, heads, size, time, capacity, row_at_columns;
};

// Whether every row of `row_at` is below `capacity`.
bool rows_exist(const AttendAsk& ask);

// Stores the newest keys and values, and writes what each row's query sees of all times up to now.
void attend(const AttendAsk& ask, int threads);

}  // namespace mbrace
