// Large blocks of memory that are kept for the next window: returning them to the system and having fresh pages mapped took
// a fifth of the time of 256 x 256 pairs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(_WIN32)
#include <malloc.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MBRACE_POOL_OFF  // so that sanitizers see every allocation
#endif

namespace mbrace {

class Pool {
  public:
    static constexpr std::size_t MIN_BYTES = std::size_t{1} << 14;  // for smaller blocks malloc is as fast
    static constexpr std::size_t MAX_BYTES = std::size_t{1} << 26;  // for larger blocks new pages cost little of the time
    static constexpr std::size_t MAX_KEPT = std::size_t{1} << 27;   // bytes: at most 128 MiB wait for reuse

    static void* take(std::size_t bytes) {
        const int kind = size_class(bytes);
        if (kind >= 0) {
            Pool& pool = shared();
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            if (!pool.free_[kind].empty()) {
                void* block = pool.free_[kind].back();
                pool.free_[kind].pop_back();
                pool.kept_ -= std::size_t{1} << kind;
                return block;
            }
        }
        void* block = bytes < MIN_BYTES ? allocate_small(bytes ? bytes : 1)
                                        : allocate_large(kind >= 0 ? std::size_t{1} << kind : (bytes + 63) / 64 * 64);
        if (!block) throw std::bad_alloc();
        return block;
    }

    static void give(void* block, std::size_t bytes) noexcept {
        const int kind = size_class(bytes);
        if (kind >= 0) {
            Pool& pool = shared();
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            if (pool.kept_ + (std::size_t{1} << kind) <= MAX_KEPT &&
                pool.free_[kind].size() < pool.free_[kind].capacity()) {
                pool.free_[kind].push_back(block);
                pool.kept_ += std::size_t{1} << kind;
                return;
            }
        }
        release(block);
    }

  private:
    // Large blocks are aligned to cache lines, so that a column (count.hpp) is never in two of them. On Windows, aligned
    // memory is released by a function of its own, so there all blocks are allocated as aligned ones.
#if defined(_WIN32)
    static void* allocate_small(std::size_t bytes) { return _aligned_malloc(bytes, alignof(std::max_align_t)); }
    static void* allocate_large(std::size_t bytes) { return _aligned_malloc(bytes, 64); }
    static void release(void* block) noexcept { _aligned_free(block); }
#else
    static void* allocate_small(std::size_t bytes) { return std::malloc(bytes); }
    static void* allocate_large(std::size_t bytes) { return std::aligned_alloc(64, bytes); }
    static void release(void* block) noexcept { std::free(block); }
#endif

    Pool() {
        for (auto& blocks : free_) blocks.reserve(1024);  // give() must not throw
    }

    static Pool& shared() {
        static Pool* pool = new Pool;  // never destroyed: arrays may outlive the module
        return *pool;
    }

    static int size_class(std::size_t bytes) {
#if defined(MBRACE_POOL_OFF)
        return -1;
#else
        if (bytes < MIN_BYTES || bytes > MAX_BYTES) return -1;
        return std::bit_width(bytes - 1);
#endif
    }

    std::mutex mutex_;
    std::vector<void*> free_[32];
    std::size_t kept_ = 0;
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
