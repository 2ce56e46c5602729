// Large blocks of memory, kept for the next window instead of being handed back to the system and faulted in again:
// a fifth of the time of 256 x 256 pairs went there.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MBRACE_POOL_OFF  // so that the sanitizers see every block's own life
#endif

namespace mbrace {

class Pool {
  public:
    static constexpr std::size_t SMALL = std::size_t{1} << 14;  // below, malloc is as good
    static constexpr std::size_t LARGE = std::size_t{1} << 26;  // above, faulting in is little beside the work
    static constexpr std::size_t KEEP = std::size_t{1} << 27;   // at most 128 MiB wait for their next use

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
        // Whole cache lines: a column of bits (count.hpp) is never in two of them.
        void* block = bytes < SMALL ? std::malloc(bytes ? bytes : 1)
                                    : std::aligned_alloc(64, kind >= 0 ? std::size_t{1} << kind : (bytes + 63) / 64 * 64);
        if (!block) throw std::bad_alloc();
        return block;
    }

    static void give(void* block, std::size_t bytes) noexcept {
        const int kind = size_class(bytes);
        if (kind >= 0) {
            Pool& pool = shared();
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            if (pool.kept_ + (std::size_t{1} << kind) <= KEEP && pool.free_[kind].size() < pool.free_[kind].capacity()) {
                pool.free_[kind].push_back(block);
                pool.kept_ += std::size_t{1} << kind;
                return;
            }
        }
        std::free(block);
    }

  private:
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
        if (bytes < SMALL || bytes > LARGE) return -1;
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

}  // namespace mbrace
