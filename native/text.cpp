#include "text.hpp"

#include <algorithm>

namespace mbrace {

int kind_of(const std::uint32_t* points, std::size_t length) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < length; ++i) bits |= points[i];
    return bits < 0x100 ? 1 : bits < 0x10000 ? 2 : 4;
}

void narrow(const std::uint32_t* points, std::size_t length, int kind, void* copy) {
    if (kind == 1) std::copy_n(points, length, static_cast<std::uint8_t*>(copy));
    if (kind == 2) std::copy_n(points, length, static_cast<std::uint16_t*>(copy));
    if (kind == 4) std::copy_n(points, length, static_cast<std::uint32_t*>(copy));
}

}  // namespace mbrace
