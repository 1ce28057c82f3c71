// Text as large as its slide allows: prose 28 px down to 16 pt; what was printed, and tables of outputs, 25 px
// (22 px beside a picture) down to 12 pt. A slide that is still too full overflows, and the tests of the decks say so.
const BESIDE_PICTURE = 22, SIZES = { "--text": [28, 21.4], "--fixed": [25, 16] }, STEPS = 12;
const tooWide = (body) =>
  [body, ...body.querySelectorAll("pre, .output")].some((one) => one.scrollWidth > one.clientWidth + 1);
const tooHigh = (body) => body.scrollHeight > body.clientHeight + 1;

function shrink(body, name, isTooLarge) {
  const [most, small] = SIZES[name];
  const large = name === "--fixed" && body.querySelector(".picture") ? BESIDE_PICTURE : most;
  for (let step = 0; step <= STEPS && (step === 0 || isTooLarge(body)); step++) {
    const size = Math.min(large - (step * (large - small)) / STEPS, body[name] ?? large);
    body.style.setProperty(name, `${size}px`);
    body[name] = size;
  }
}

// A face is otherwise loaded when the first text needs it, and what was measured before is in another font.
await Promise.all([...document.fonts].map((face) => face.load()));
await Promise.all([...document.images].map((image) => image.decode()));
document.body.classList.add("measuring");
for (const body of document.querySelectorAll(".body")) {
  shrink(body, "--fixed", tooWide);
  if (tooWide(body)) {
    // Lines of an error message, mostly: they may wrap, and then need not be small.
    body.classList.add("wraps");
    delete body["--fixed"];
    body.style.setProperty("--fixed", `${SIZES["--fixed"][0]}px`);
  }
  shrink(body, "--text", tooHigh);
  shrink(body, "--fixed", tooHigh);
}
document.body.classList.remove("measuring");
Reveal.initialize({
  width: 1280, height: 720, margin: 0, center: false, hash: true, transition: "none", controlsTutorial: false,
  pdfSeparateFragments: false, pdfMaxPagesPerSlide: 1, plugins: [RevealNotes],
});
