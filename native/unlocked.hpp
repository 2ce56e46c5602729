// The interpreter lock, released for a while.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace mbrace {

// Releases the lock for its lifetime, as nb::gil_scoped_release does, and lets a daemon thread be when Python shuts down.
//
// A thread that asks for the lock after the shutdown has begun is ended by CPython there and then. C++ frames cannot be
// unwound so: the process would abort. Here such a thread sleeps until the process ends. `end`, which Python calls
// at exit, waits for those that are about to get the lock; who comes later sees that it has been called.
class Unlocked {
  public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

    ~Unlocked() {
        ++returning;
        if (ending && std::this_thread::get_id() != ender) {
            --returning;
            while (true) std::this_thread::sleep_for(std::chrono::hours(1));
        }
        PyEval_RestoreThread(state_);
        --returning;
    }

    // To be called once, with the lock, before the interpreter shuts down.
    static void end() {
        ender = std::this_thread::get_id();
        ending = true;
        PyThreadState* state = PyEval_SaveThread();
        for (int tries = 0; returning > 0 && tries < 1000; ++tries) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        PyEval_RestoreThread(state);
    }

  private:
    static inline std::atomic<bool> ending{false};
    static inline std::atomic<int> returning{0};  // threads that are about to get the lock
    static inline std::thread::id ender;          // the main thread goes on
    PyThreadState* state_;
};

}  // namespace mbrace
