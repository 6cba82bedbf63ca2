// The sections of the results around this component.

const results = element.closest(".ckv-results");
root.append(new SectionLinks(() => [...results.querySelectorAll(".section h3, .ckv-section-name")]).node);
onValue(() => {});
