/* verbs.h: the table of hpcomm/core/verbs.py. setup.py writes it. */
enum { NO_VERB, BY_ALL_GATHER, BY_ALL_REDUCE, BY_ALL_TO_ALL, BY_BARRIER, BY_BROADCAST, BY_EXSCAN, BY_GATHER, BY_REDUCE, BY_REDUCE_SCATTER, BY_SCAN, BY_SCATTER, VERBS };
#define VERB_NAMES "", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "exscan", "gather", "reduce", "reduce_scatter", "scan", "scatter"
enum { INPUT_BLOCKS = 1 << BY_ALL_TO_ALL | 1 << BY_REDUCE_SCATTER | 1 << BY_SCATTER };
enum { OUTPUT_BLOCKS = 1 << BY_ALL_GATHER | 1 << BY_ALL_TO_ALL | 1 << BY_GATHER };
enum { SCATTERING = 1 << BY_REDUCE_SCATTER | 1 << BY_SCATTER };
enum { GATHERING = 1 << BY_ALL_GATHER | 1 << BY_GATHER };
enum { ROOT_SENDS = 1 << BY_BROADCAST | 1 << BY_SCATTER };
enum { ROOT_RECEIVES = 1 << BY_GATHER | 1 << BY_REDUCE };
enum { ROOTED = 1 << BY_BROADCAST | 1 << BY_GATHER | 1 << BY_REDUCE | 1 << BY_SCATTER };
enum { REDUCTIONS = 1 << BY_ALL_REDUCE | 1 << BY_EXSCAN | 1 << BY_REDUCE | 1 << BY_REDUCE_SCATTER | 1 << BY_SCAN };
enum { PREFIXES = 1 << BY_EXSCAN | 1 << BY_SCAN };
enum { RAGGED = 1 << BY_ALL_GATHER | 1 << BY_ALL_TO_ALL | 1 << BY_BROADCAST | 1 << BY_GATHER | 1 << BY_SCATTER };
