// Asking the server something: what board.js and verify.js share, loaded before either.
"use strict";

// A connection that died silently gives no answer and no error, so each question has its time limit.
const ANSWER_WITHIN = 10000;
const ask = (address) => fetch(address, { signal: AbortSignal.timeout(ANSWER_WITHIN) });
