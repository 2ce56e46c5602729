#include "pieces.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "distinct.hpp"
#include "parallel.hpp"
#include "text.hpp"

namespace mbrace {
namespace {

struct Character {
    std::uint32_t point;
    std::size_t length;  // bytes; 0: none begins there
};

// The character of UTF-8 at the beginning of `left` bytes.
Character character(const char* bytes, std::size_t left) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])); };
    const std::uint32_t first = at(0);
    if (first < 0x80) return {first, 1};
    const std::size_t length = first >= 0xF8 ? 0 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 0;
    if (length == 0 || length > left) return {0, 0};
    std::uint32_t point = first & (0xFFu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
        if ((at(i) & 0xC0) != 0x80) return {0, 0};
        point = point << 6 | (at(i) & 0x3F);
    }
    const std::uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    const bool surrogate = point >= 0xD800 && point < 0xE000;
    return point < least || surrogate || point > 0x10FFFF ? Character{0, 0} : Character{point, length};
}

void end_run(std::string& run, std::string& out) {
    for (std::size_t at = 0; at < run.size();) {
        const std::size_t length = character(run.data() + at, run.size() - at).length;
        if (length) {
            out.append(run, at, length);
        } else {
            out += "\xEF\xBF\xBD";
        }
        at += length ? length : 1;
    }
    run.clear();
}

// Without whitespace around it, as Python's str.strip().
std::string stripped(const std::string& text) {
    std::size_t begin = 0, end = text.size();
    while (begin < end) {
        const Character first = character(text.data() + begin, end - begin);
        if (!is_space(first.point)) break;
        begin += first.length;
    }
    while (begin < end) {
        std::size_t last = end - 1;
        while (last > begin && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
        if (!is_space(character(text.data() + last, end - last).point)) break;
        end = last;
    }
    return text.substr(begin, end - begin);
}

}  // namespace

Pieces::Pieces(std::vector<std::string> texts, std::vector<std::int32_t> bytes)
    : texts_(std::move(texts)), bytes_(std::move(bytes)) {
    if (texts_.size() != bytes_.size()) throw std::invalid_argument("give a text and a byte for each id");
    for (const std::int32_t byte : bytes_) {
        if (byte < NO_BYTE || byte > 255) throw std::invalid_argument("a byte is a number from 0 to 255, or -1 for none");
    }
}

std::string Pieces::text(const std::int32_t* ids, std::size_t count) const {
    std::string out, run;
    out.reserve(6 * count);
    for (std::size_t at = 0; at < count; ++at) {
        if (ids[at] < 0 || static_cast<std::size_t>(ids[at]) >= texts_.size()) continue;
        const auto id = static_cast<std::size_t>(ids[at]);
        if (bytes_[id] != NO_BYTE) {
            run.push_back(static_cast<char>(bytes_[id]));
        } else if (!texts_[id].empty()) {
            if (!run.empty()) end_run(run, out);
            out += texts_[id];
        }
    }
    if (!run.empty()) end_run(run, out);
    return stripped(out);
}

std::vector<std::string> Pieces::texts(const std::int32_t* ids, std::size_t rows, std::size_t width, int threads,
                                       std::vector<std::size_t>& numbers) const {
    static constexpr std::size_t AT_ONCE = 64;  // rows per task
    std::vector<std::size_t> lengths(rows), first;
    numbers.resize(rows);
    Distinct distinct;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int32_t* own = ids + row * width;
        std::size_t length = width;
        while (length > 0 && own[length - 1] < 0) --length;
        lengths[row] = length;
        numbers[row] = distinct.add({own, length, static_cast<int>(sizeof(std::int32_t))});
        if (numbers[row] == first.size()) first.push_back(row);
    }
    std::vector<std::string> found(first.size());
    parallel((found.size() + AT_ONCE - 1) / AT_ONCE, threads, [&](int, std::size_t task) {
        for (std::size_t i = task * AT_ONCE; i < std::min(found.size(), (task + 1) * AT_ONCE); ++i) {
            found[i] = text(ids + first[i] * width, lengths[first[i]]);
        }
    });
    return found;
}

}  // namespace mbrace
