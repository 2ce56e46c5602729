// Large blocks of memory that are kept for the next window: returning them to the system and having fresh pages mapped took
// a fifth of the time of 256 x 256 pairs.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace mbrace {

struct Pool {
    static void* take(std::size_t bytes);
    static void give(void* block, std::size_t bytes) noexcept;
};

template <class T>
struct PoolAllocator {
    using value_type = T;
    PoolAllocator() = default;
    template <class U>
    PoolAllocator(const PoolAllocator<U>&) noexcept {}
    T* allocate(std::size_t n) { return static_cast<T*>(Pool::take(n * sizeof(T))); }
    void deallocate(T* block, std::size_t n) noexcept { Pool::give(block, n * sizeof(T)); }
    template <class U>
    bool operator==(const PoolAllocator<U>&) const noexcept {
        return true;
    }
};

template <class T>
using Vector = std::vector<T, PoolAllocator<T>>;

// The same, but new elements are not set to 0: for tables that are written as a whole.
template <class T>
struct UnsetAllocator : PoolAllocator<T> {
    UnsetAllocator() = default;
    template <class U>
    UnsetAllocator(const UnsetAllocator<U>&) noexcept {}
    template <class U>
    void construct(U* element) noexcept {
        ::new (static_cast<void*>(element)) U;
    }
};

template <class T>
using UnsetVector = std::vector<T, UnsetAllocator<T>>;

}  // namespace mbrace
