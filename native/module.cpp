// The module _native: what Python sees of the kernel, subject by subject. Strings and NumPy arrays go in, NumPy arrays come
// out, and the interpreter lock is released in between. Only module*.cpp, and python.hpp and py_tally.hpp,
// which they share, know Python.
#include <nanobind/nanobind.h>

#include "unlocked.hpp"

#include "python.hpp"

NB_MODULE(_native, module) {
    // Objects that a cache, or Python itself, keeps until the program ends are not leaks that users should be warned of.
    nanobind::set_leak_warnings(false);
    mbrace::bind_chrf(module);
    mbrace::bind_bleu(module);
    mbrace::bind_attend(module);
    mbrace::bind_race(module);
    mbrace::bind_forecast(module);
    mbrace::bind_texts(module);
    mbrace::bind_whole_race(module);
    nanobind::module_::import_("atexit").attr("register")(nanobind::cpp_function([] { mbrace::Unlocked::end(); }));
}
