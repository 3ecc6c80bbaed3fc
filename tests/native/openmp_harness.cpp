// Beside openmp_cases.cpp: the setting that the cases don't make themselves.
#include "base/export.h"
#include "threads/threads.h"

EC_API void t_set_num_threads(int n) { ec::set_num_threads(n); }
